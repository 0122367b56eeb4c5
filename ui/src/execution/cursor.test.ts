import { describe, expect, test } from 'vitest'
import type { MarkView, PageArcView, PageFailureView, PageStepView, PageView } from '../api/types'
import { parseSearch, stringifySearch } from '../parts/search'
import {
  chooseSelection,
  findLandmark,
  findNextFailure,
  findNextNumber,
  listLandmarks,
  readCommandItems,
  readExecutionSearch,
  selectStep,
  showCommandItems,
} from './cursor'

const step = (status: string, first: number | null = null, last: number | null = null) =>
  ({ status, first_seq: first, last_seq: last }) as PageStepView
const makeView = (changes: Partial<PageView>) =>
  ({ execution_id: '7', steps: {}, arcs: {}, failure: null, result_step: null, ...changes }) as PageView

test('an address survives reading and writing', () => {
  const text = '?step=score&run=1&item=7777&tab=logs&at=71&from=2026-01-02T03:04:05.000Z&to=2026-01-02T03:04:06.000Z'
  expect(stringifySearch({ ...readExecutionSearch(parseSearch(text)) })).toBe(text)
})

test('what an address cannot mean is left out', () => {
  const search = readExecutionSearch(parseSearch('?at=-1&run=x&tab=nothing&from=yesterday&item=1.5'))
  expect(stringifySearch({ ...search })).toBe('')
})

describe('chooseSelection', () => {
  const failure = { execution_id: '7', step: 'score', run: 1, item: 7777 } as PageFailureView

  test('the address decides', () => {
    const view = makeView({ failure })
    expect(chooseSelection({ step: 'plan' }, view)).toEqual({ step: 'plan', run: null, item: null })
  })

  test('else the failure', () => {
    expect(chooseSelection({}, makeView({ failure }))).toEqual({ step: 'score', run: 1, item: 7777 })
  })

  test('a failure of a child selects the step that failed here', () => {
    const steps = { call: step('failed'), plan: step('completed') }
    const view = makeView({ failure: { ...failure, execution_id: '8' }, steps })
    expect(chooseSelection({}, view).step).toBe('call')
  })

  test('else what runs, then what made the result', () => {
    expect(chooseSelection({}, makeView({ steps: { a: step('completed'), b: step('running') } })).step).toBe('b')
    expect(chooseSelection({}, makeView({ steps: { a: step('completed') }, result_step: 'a' })).step).toBe('a')
    expect(chooseSelection({}, makeView({})).step).toBeNull()
  })
})

test('another step forgets run, item and line', () => {
  const next = selectStep({ step: 'a', run: 2, item: 3, line: 18, tab: 'logs', at: 9 }, 'b')
  expect(stringifySearch({ ...next })).toBe('?step=b&tab=logs&at=9')
})

describe('landmarks', () => {
  const arc = (seq: number) => ({ last: { verdict: 'taken', saw: {}, seq } }) as unknown as PageArcView
  const view = makeView({
    steps: { plan: step('completed', 3, 9), score: step('failed', 9, 70) },
    arcs: { 'score:0': arc(80), 'plan:0': arc(10) },
  })
  const marks = [{ seq: 40 } as MarkView, { seq: 71 } as MarkView]

  test('have marks, steps, and arcs of the selected step', () => {
    expect(listLandmarks(view, marks, 'score')).toEqual([3, 9, 40, 70, 71, 80])
    expect(listLandmarks(view, marks, null)).toEqual([3, 9, 40, 70, 71])
  })

  test('are found in both directions, and end', () => {
    const landmarks = [3, 9, 40]
    expect(findLandmark(landmarks, 9, 1)).toBe(40)
    expect(findLandmark(landmarks, 9, -1)).toBe(3)
    expect(findLandmark(landmarks, 40, 1)).toBeNull()
    expect(findLandmark(landmarks, 3, -1)).toBeNull()
  })
})

test('the next failure comes around', () => {
  expect(findNextFailure([96, 71], null)).toBe(71)
  expect(findNextFailure([96, 71], 71)).toBe(96)
  expect(findNextFailure([96, 71], 96)).toBe(71)
  expect(findNextFailure([], 3)).toBeNull()
})

test('the items of a command are in the address, until another step is selected', () => {
  const shown = showCommandItems({ step: 'plan', item: 4, at: 71 }, 'score', 2, { first: 0, count: 1500 })
  expect(shown).toMatchObject({ step: 'score', run: 2, tab: 'items', first: 0, count: 1500, at: 71, item: undefined })
  const read = readExecutionSearch(parseSearch(stringifySearch({ ...shown })))
  expect(readCommandItems(read)).toEqual({ first: 0, count: 1500 })
  expect(readCommandItems(selectStep(shown, 'plan'))).toBeNull()
  expect(readCommandItems({ first: 3, count: 0 })).toBeNull()
})

test('the event beside another one stays within the log', () => {
  expect(findNextNumber(9, -1, 20)).toBe(8)
  expect(findNextNumber(1, -1, 20)).toBe(1)
  expect(findNextNumber(18, 1, 20)).toBe(19)
  expect(findNextNumber(19, 1, 20)).toBeNull()
})

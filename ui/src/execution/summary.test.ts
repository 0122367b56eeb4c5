import { describe, expect, test } from 'vitest'
import type { FailureKindView, PageFailureView, PageStepView, PageView, RepeatView } from '../api/types'
import {
  chooseFailure,
  chooseTimelineHeight,
  describeLoop,
  describeRepeat,
  describeStep,
  makePageCommand,
  makeRetryCommand,
  makeRetryTitle,
  summarizeItems,
} from './summary'

const loop = { total: 100000, done: 100000, ok: 99997, failed: 3, skipped: 0, left: 0, running: 0, rate: null, seconds_left: null }
const step = (changes: Partial<PageStepView>) =>
  ({ status: 'completed', runs: 1, loop: null, waits: null, error: null, ...changes }) as PageStepView

test('items of all loops are counted', () => {
  const view = { steps: { plan: step({}), score: step({ loop }) } } as unknown as PageView
  expect(summarizeItems(view)).toBe('100\u202f000 items, 3 failed')
  expect(summarizeItems({ steps: { plan: step({}) } } as unknown as PageView)).toBeNull()
})

test('a running loop says rate and time left', () => {
  const running = step({ status: 'running', loop: { ...loop, done: 40000, ok: 40000, failed: 0, rate: 1600, seconds_left: 37.5 } })
  expect(describeStep(running)).toBe('40\u202f000 ok · 40 % of 100\u202f000 · 1\u202f600/s · 37.5 s left')
})

test('a retry says what it will do before it does it', () => {
  const plan = {
    begins: ['score'],
    again: ['score', 'report'],
    ways: [{ step: 'score', to: ['report'], maybe: [], one: false, has_else: false }],
    items: { score: { again: 3, total: 100000, left: 0, fails_again: false } },
    inherited: ['plan'],
    version: 7,
    version_before: 7,
    writes_again: {},
    changed_loops: [],
  } as unknown as RepeatView
  expect(describeRepeat(plan)).toEqual([
    'Runs score (3 of 100\u202f000 items), then report.',
    'Inherits the results of plan.',
  ])
})

test('a retry of some items says what stays failed', () => {
  const plan = {
    begins: ['score'],
    again: ['score'],
    ways: [],
    items: { score: { again: 2, total: 9, left: 1, fails_again: true } },
    inherited: [],
    version: 1,
    version_before: 1,
    writes_again: {},
    changed_loops: [],
  } as unknown as RepeatView
  expect(describeRepeat(plan)).toEqual([
    'Runs score (2 of 9 items).',
    '1 other failed item of score stays failed, so score fails even if the chosen ones succeed.',
  ])
  expect(makeRetryCommand('7', { score: [3, 17] })).toBe('noetl exec retry 7 --step score --item 3,17')
  expect(makeRetryCommand('7', {})).toBe('noetl exec retry 7')
  expect(makeRetryTitle({ score: [3, 17] })).toBe('Retry 2 items of score')
  expect(makeRetryTitle({})).toBe('Retry what did not finish')
})

describe('chooseFailure', () => {
  const kinds = [
    { step: 'score', code: 'PYTHON_ERROR', first: { item: 7, seq: 40, message: 'ValueError' } },
    { step: 'score', code: 'PYTHON_ERROR', first: { item: 9, seq: 33, message: 'KeyError' } },
  ] as FailureKindView[]
  const failure = { step: 'score', item: 9, code: 'PYTHON_ERROR', message: 'KeyError, whole', seq: 33 } as PageFailureView

  test('the first causal failure is shown first, in any order of kinds', () => {
    const shown = chooseFailure(failure, kinds, { step: 'score', run: null, item: 9 })
    expect(shown).toMatchObject({ kind: 1, message: 'KeyError, whole', item: 9 })
  })

  test('another kind is shown when its first item is chosen', () => {
    const shown = chooseFailure(failure, kinds, { step: 'score', run: null, item: 7 })
    expect(shown).toMatchObject({ kind: 0, message: 'ValueError', item: 7, seq: 40 })
  })

  test('another step or item changes nothing', () => {
    expect(chooseFailure(failure, kinds, { step: 'plan', run: null, item: null }).kind).toBe(1)
    expect(chooseFailure(failure, [], { step: 'plan', run: null, item: null }).kind).toBe(-1)
  })
})

test('the timeline has room for its lanes, within bounds', () => {
  const make = (count: number) => ({ steps: Object.fromEntries(Array.from({ length: count }, (_, i) => [String(i), {}])) }) as unknown as PageView
  expect(chooseTimelineHeight(make(1))).toBe(132)
  expect(chooseTimelineHeight(make(4))).toBe(184)
  expect(chooseTimelineHeight(make(100))).toBe(212)
})

test('the command shows what the page shows', () => {
  expect(makePageCommand('7', {}, 'score', 12)).toBe('noetl exec get 7')
  expect(makePageCommand('7', { tab: 'logs' }, 'score', 12)).toBe('noetl exec logs 7 --step score')
  expect(makePageCommand('7', { at: 71 }, 'score', 12)).toBe('noetl exec explain 7 score --at 12')
  expect(makePageCommand('7', { step: 'score', at: 71, run: 2 }, 'score', 12)).toBe('noetl exec explain 7 score --at 12 --run 2')
})

test('time left is told only when it means something', () => {
  const loop = { total: 100_000, done: 7, ok: 7, failed: 0, skipped: 0, left: 0, running: 16, rate: 108, seconds_left: 929 }
  expect(describeLoop(step({ status: 'running', loop }))).not.toContain('left')
  expect(describeLoop(step({ status: 'running', loop: { ...loop, done: 50_000 } }))).toContain('left')
})

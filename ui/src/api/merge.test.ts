import { describe, expect, test } from 'vitest'
import type { Delta } from './messages'
import type { BandView, ExecutionsView, ListedExecutionView, PageStepView, PageView, TimelineView } from './types'
import { compareIds, mergeBands, mergeDelta, mergeRow, removeRow, waitsOtherwise } from './merge'

const step = (status: string): PageStepView => ({
  status,
  runs: 1,
  entered_at: null,
  ended_at: null,
  first_seq: null,
  last_seq: null,
  seconds: null,
  loop: null,
  waits: null,
  error: null,
})

const view = {
  execution_id: '7',
  status: 'running',
  seq: 40,
  number: 12,
  events: 12,
  last_seq: 40,
  at: '2026-01-02T03:04:05Z',
  steps: { plan: step('completed'), score: step('running') },
  arcs: {},
  ctx: { n: 1 },
} as unknown as PageView

const delta = {
  seq: 60,
  number: 14,
  events: 14,
  status: 'failed',
  updated_at: '2026-01-02T03:04:07Z',
  steps: { score: step('failed') },
  arcs: { 'score:0': { taken: 1, false: 0, error: 0, untried: 0, last: null } },
  failures: { total: 3, kinds: [] },
  bands: {},
} as unknown as Delta

describe('mergeDelta', () => {
  test('changes what the delta names and keeps the rest', () => {
    const merged = mergeDelta(view, delta)
    expect(merged.status).toBe('failed')
    expect(merged.last_seq).toBe(60)
    expect(merged.at).toBe('2026-01-02T03:04:07Z')
    expect(merged.steps.score?.status).toBe('failed')
    expect(merged.steps.plan).toBe(view.steps.plan)
    expect(merged.ctx).toBe(view.ctx)
    expect(merged).not.toHaveProperty('bands')
  })

  test('a delta that comes twice or late changes nothing', () => {
    const merged = mergeDelta(view, delta)
    expect(mergeDelta(merged, delta)).toEqual(merged)
    expect(mergeDelta(merged, { ...delta, seq: 50 })).toBe(merged)
  })
})

const band: BandView = {
  first_at: '2026-01-02T03:04:05Z',
  last_at: '2026-01-02T03:04:06Z',
  first_seq: 1,
  last_seq: 9,
  width_us: 1000,
  start: '2026-01-02T03:04:05Z',
  started: [1, 2],
  ended: [0, 1],
  items: [0, 1],
  failed: [0, 0],
  retried: [0, 0],
  busy_us: [10, 20],
  slowest_us: [5, 6],
}
const timeline: TimelineView = {
  from: band.start,
  to: band.start,
  exact: false,
  steps: { score: band },
  spans: null,
  next_zoom: null,
  marks: [],
}

describe('mergeBands', () => {
  test('buckets are replaced from their index on, and gaps are zero', () => {
    const merged = mergeBands(timeline, {
      score: { start: band.start, width_us: 1000, from: 3, started: [4], ended: [2] },
    })
    expect(merged?.steps.score?.started).toEqual([1, 2, 0, 4])
    expect(merged?.steps.score?.ended).toEqual([0, 1, 0, 2])
    expect(merged?.steps.score?.items).toBe(band.items)
    expect(timeline.steps.score?.started).toEqual([1, 2])
  })

  test('wider buckets and new steps must be read again', () => {
    expect(mergeBands(timeline, { score: { start: band.start, width_us: 2000, from: 0, started: [3] } })).toBeNull()
    expect(mergeBands(timeline, { other: { start: band.start, width_us: 1000, from: 0, started: [3] } })).toBeNull()
  })
})

const row = (id: string, status: string, lastSeq = 1) =>
  ({ execution_id: id, status, last_seq: lastSeq, path: 'a' }) as unknown as ListedExecutionView
const list: ExecutionsView = { executions: [row('30', 'running'), row('20', 'failed')], next: '20', looked_at: null }
const rules = { statuses: [], isFirstPage: true, maxRows: 50 }

describe('mergeRow', () => {
  test('a changed row stays in its place', () => {
    const merged = mergeRow(list, row('20', 'completed', 5), rules)
    expect(merged.executions.map((each) => each.status)).toEqual(['running', 'completed'])
  })

  test('a new row comes first on the first page only', () => {
    expect(mergeRow(list, row('100', 'running'), rules).executions[0]?.execution_id).toBe('100')
    expect(mergeRow(list, row('100', 'running'), { ...rules, isFirstPage: false })).toBe(list)
  })

  test('a row below the page does not come onto it', () => {
    expect(mergeRow(list, row('5', 'running'), rules)).toBe(list)
  })

  test('a row leaves when its status is not wanted any more', () => {
    const merged = mergeRow(list, row('30', 'completed', 9), { ...rules, statuses: ['running', 'failed'] })
    expect(merged.executions.map((each) => each.execution_id)).toEqual(['20'])
  })

  test('an older state does not replace a newer one', () => {
    const newer = mergeRow(list, row('30', 'completed', 9), rules)
    expect(mergeRow(newer, row('30', 'running', 3), rules)).toBe(newer)
  })

  test('the page does not grow', () => {
    const merged = mergeRow(list, row('40', 'running'), { ...rules, maxRows: 2 })
    expect(merged.executions.map((each) => each.execution_id)).toEqual(['40', '30'])
  })
})

test('ids are ordered as numbers', () => {
  expect(['9', '100', '20'].sort(compareIds)).toEqual(['9', '20', '100'])
  expect(compareIds('7', '7')).toBe(0)
})

test('a row that is gone is taken out', () => {
  expect(removeRow(list, '20').executions).toHaveLength(1)
  expect(removeRow(list, '77')).toBe(list)
})

test('what waits for a person is told apart from all other changes', () => {
  const asks = { ...step('waiting'), waits: { on: 'approval', since: '2026-01-02T03:04:05Z' } } as PageStepView
  const waiting = { ...view, steps: { ...view.steps, score: asks } } as PageView
  expect(waitsOtherwise(view, waiting)).toBe(true)
  expect(waitsOtherwise(waiting, { ...waiting, seq: 41 })).toBe(false)
  expect(waitsOtherwise(waiting, { ...waiting, status: 'paused' })).toBe(true)
  const again = { ...asks, waits: { ...asks.waits, since: '2026-01-02T03:05:05Z' } } as PageStepView
  expect(waitsOtherwise(waiting, { ...waiting, steps: { score: again } } as PageView)).toBe(true)
  const child = { ...step('waiting'), waits: { on: 'child', since: null } } as PageStepView
  expect(waitsOtherwise(view, { ...view, steps: { ...view.steps, score: child } } as PageView)).toBe(false)
})

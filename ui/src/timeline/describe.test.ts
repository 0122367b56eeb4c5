import { expect, it } from 'vitest'
import { describeHit, hasItems, listRows } from './describe'
import { buildLanes } from './pyramid'
import { makeBand, makeSpan, makeTimeline, START } from './samples'

const tell = (more: Parameters<typeof makeSpan>[3]) =>
  describeHit({ on: 'lane', step: 'score', time: START, span: makeSpan('score', 100, 400, more), bucket: null }, START)

it('a command of a loop names its items', () => {
  expect(tell({ first: 0, count: 1_500, ok: 1_500 })).toContain('score items 0–1\u202f499')
  expect(tell({ first: 7, count: 1 })).toContain('score item 7')
  expect(tell({ first: 0, count: 1, repeats: true, indexes: [17, 17] })).toContain('score item 17')
})

it('a command of a plain step names no items', () => {
  expect(tell({})[0]).toBe('score')
})

it('a command without a known start has no time', () => {
  expect(tell({ issued: null, started: null, ended: null, status: 'waiting' })[1]).toBe('waiting')
})

it('a command of a loop leads to its items once it has reported some', () => {
  expect(tell({ first: 0, count: 1_500, ok: 1_500 })).toContain('click: its items')
  expect(hasItems(makeSpan('score', 0, null, { count: 10, ok: 0 }))).toBe(false)
  expect(hasItems(makeSpan('plan', 0, 100))).toBe(false)
})

const countCommands = (more: Parameters<typeof makeTimeline>[1]) =>
  listRows(buildLanes(makeTimeline(1_000, more)), START).map((row) => row.commands)

it('a command that waits has not ended, and no more end than there are', () => {
  const parked = makeSpan('ask', 0, 100, { command_id: 'c', started: null, status: 'waiting', ok: 0 })
  const again = makeSpan('ask', 100, null, { command_id: 'c', attempt: 2, started: null, status: 'waiting', ok: 0 })
  expect(countCommands({ spans: [parked, again] })).toEqual(['0 of 1'])
  const done = makeSpan('ask', 100, 400, { command_id: 'c', attempt: 2 })
  expect(countCommands({ spans: [parked, done] })).toEqual(['1 of 1'])
})

it('a band in which commands were stopped before they began counts them', () => {
  expect(countCommands({ steps: { s: makeBand({ started: [1, 0], ended: [0, 3] }, 100) } })).toEqual(['3 of 3'])
})

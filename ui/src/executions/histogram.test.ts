import { expect, test } from 'vitest'
import { makeBars, selectWindow } from './histogram'

const histogram = {
  from: '2026-01-02T00:00:00.000Z',
  width_ms: 60_000,
  by: { failed: [0, 2, 0], quarantined: [0, 1, 0], completed: [4, 1, 0] },
}

test('bars are stacked by tone, failures at the bottom', () => {
  const bars = makeBars(histogram)
  expect(bars.count).toBe(3)
  expect(bars.highest).toBe(4)
  expect(bars.paths.map((each) => each.tone)).toEqual(['failed', 'completed'])
  expect(bars.paths[0]?.path).toBe('M1.08 0.25h0.84v0.75h-0.84z')
  expect(bars.paths[1]?.path).toBe('M0.08 0h0.84v1h-0.84zM1.08 0h0.84v0.25h-0.84z')
})

test('a drag selects whole buckets, in either direction', () => {
  const wanted = { since: '2026-01-02T00:01:00.000Z', until: '2026-01-02T00:03:00.000Z' }
  expect(selectWindow(histogram, 3, 0.4, 0.9)).toEqual(wanted)
  expect(selectWindow(histogram, 3, 0.9, 0.4)).toEqual(wanted)
})

test('a click selects one bucket', () => {
  expect(selectWindow(histogram, 3, 0.5, 0.5)).toEqual({
    since: '2026-01-02T00:01:00.000Z',
    until: '2026-01-02T00:02:00.000Z',
  })
})

test('nothing to draw is drawn as nothing', () => {
  expect(makeBars({ ...histogram, by: {} })).toEqual({ count: 0, highest: 1, paths: [] })
})

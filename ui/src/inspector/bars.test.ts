import { expect, test } from 'vitest'
import type { ItemBarView, ItemTimesView } from '../api/types'
import { describeBars, findSlowest, measureBars } from './bars'

const makeBar = (first: number, ms: number, failed = 0): ItemBarView => ({ first, last: first, ms, slowest: first, failed })
const BARS = [makeBar(0, 10), makeBar(1, 0), makeBar(2, 40, 2)]

test('bars stand side by side, the slowest as high as there is room', () => {
  const placed = measureBars(BARS, 300, 40)
  expect(placed.map((bar) => [bar.x, bar.height])).toEqual([
    [0, 10],
    [100, 2],
    [200, 40],
  ])
  expect(placed.every((bar) => bar.width < 100)).toBe(true)
})

test('bars are told in words', () => {
  const times: ItemTimesView = { step: 'score', run: 1, items: 1500, bars: BARS, is_whole: true }
  expect(describeBars(times)).toBe('1\u202f500 items, up to 40 ms, 2 failed')
  expect(describeBars({ ...times, is_whole: false })).toContain('and more that were not read')
  expect(findSlowest(BARS)?.first).toBe(2)
  expect(findSlowest([])).toBe(null)
})

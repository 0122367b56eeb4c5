// The bars of the items of a command. Pure.
import type { ItemBarView, ItemTimesView } from '../api/types'
import { formatCount, formatDuration, formatNoun } from '../parts/format'

export interface PlacedBar {
  bar: ItemBarView
  x: number
  width: number
  height: number
}

const GAP_SHARE = 0.15
const MIN_HEIGHT = 2

// A bar of the height of its slowest item. An item that took no time is still seen.
export function measureBars(bars: readonly ItemBarView[], width: number, height: number): PlacedBar[] {
  const peak = Math.max(1, ...bars.map((bar) => bar.ms))
  const each = width / bars.length
  return bars.map((bar, n) => ({
    bar,
    x: n * each,
    width: each * (1 - GAP_SHARE),
    height: Math.max(MIN_HEIGHT, (bar.ms / peak) * height),
  }))
}

export function findSlowest(bars: readonly ItemBarView[]): ItemBarView | null {
  return bars.reduce<ItemBarView | null>((slowest, bar) => (slowest === null || bar.ms > slowest.ms ? bar : slowest), null)
}

// 1 500 items, up to 340 ms, 3 failed
export function describeBars(times: ItemTimesView): string {
  const failed = times.bars.reduce((sum, bar) => sum + bar.failed, 0)
  const slowest = findSlowest(times.bars)
  const parts = [formatNoun(times.items, 'item')]
  if (slowest !== null) parts.push(`up to ${formatDuration(slowest.ms)}`)
  if (failed > 0) parts.push(`${formatCount(failed)} failed`)
  if (!times.is_whole) parts.push('and more that were not read')
  return parts.join(', ')
}

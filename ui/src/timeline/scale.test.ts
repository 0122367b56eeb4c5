import { describe, expect, it } from 'vitest'
import {
  findIdle,
  foldAxis,
  formatTick,
  isWhole,
  listTicks,
  panView,
  pixelToTime,
  timeToPixel,
  toAxis,
  toTime,
  viewWhole,
  zoomView,
  type Scale,
} from './scale'

const EXTENT = { from: 1_000, to: 11_000 }

function makeScale(axis = foldAxis(EXTENT, [])): Scale {
  return { axis, view: viewWhole(axis), left: 100, width: 500 }
}

describe('idle time', () => {
  it('is what no interval covers, also before the first and after the last', () => {
    const busy = [
      { from: 6_000, to: 7_000 },
      { from: 2_000, to: 5_000 },
      { from: 2_500, to: 3_000 },
    ]
    expect(findIdle(busy, EXTENT)).toEqual([
      { from: 1_000, to: 2_000 },
      { from: 5_000, to: 6_000 },
      { from: 7_000, to: 11_000 },
    ])
  })

  it('is the whole extent when nothing works', () => {
    expect(findIdle([], EXTENT)).toEqual([EXTENT])
  })
})

describe('axis', () => {
  it('is the time itself while nothing is folded', () => {
    const axis = foldAxis(EXTENT, [])
    expect(axis.length).toBe(10_000)
    expect(toAxis(axis, 4_000)).toBe(3_000)
  })

  it('folds idle intervals over a tenth and keeps shorter ones', () => {
    const axis = foldAxis(EXTENT, [
      { from: 2_000, to: 2_900 },
      { from: 4_000, to: 9_000 },
    ])
    expect(axis.pieces.map((piece) => [piece.from, piece.to, piece.folded])).toEqual([
      [1_000, 4_000, false],
      [4_000, 9_000, true],
      [9_000, 11_000, false],
    ])
    expect(axis.length).toBeCloseTo(5_000 * 1.03)
  })

  it('can be folded at both ends, and when all of it is idle', () => {
    const ends = foldAxis(EXTENT, [
      { from: 1_000, to: 4_000 },
      { from: 8_000, to: 11_000 },
    ])
    expect(ends.pieces.map((piece) => piece.folded)).toEqual([true, false, true])
    const all = foldAxis(EXTENT, [EXTENT])
    expect(toTime(all, toAxis(all, 5_000))).toBeCloseTo(5_000)
  })

  it('has room for an extent without length', () => {
    const axis = foldAxis({ from: 5, to: 5 }, [])
    expect(toAxis(axis, 5)).toBe(0)
    expect(axis.length).toBe(1)
  })

  it('maps there and back', () => {
    const axis = foldAxis(EXTENT, [{ from: 3_000, to: 9_000 }])
    const scale = { ...makeScale(axis), view: { from: 500, to: 2_500 } }
    for (const time of [1_700, 2_999, 3_000, 5_000, 8_999, 9_100]) {
      expect(toTime(axis, toAxis(axis, time))).toBeCloseTo(time, 6)
      expect(pixelToTime(scale, timeToPixel(scale, time))).toBeCloseTo(time, 6)
    }
  })
})

describe('view', () => {
  const axis = foldAxis(EXTENT, [])

  it('keeps the place under the pointer while zooming', () => {
    const view = zoomView(axis, viewWhole(axis), 0.5, 2_000)
    expect(view).toEqual({ from: 1_000, to: 6_000 })
  })

  it('never leaves the axis', () => {
    expect(zoomView(axis, { from: 0, to: 4_000 }, 10, 1_000)).toEqual({ from: 0, to: 10_000 })
    expect(panView(axis, { from: 1_000, to: 3_000 }, -5_000)).toEqual({ from: 0, to: 2_000 })
    expect(panView(axis, { from: 1_000, to: 3_000 }, 50_000)).toEqual({ from: 8_000, to: 10_000 })
  })

  it('is whole only when both ends are shown', () => {
    expect(isWhole(axis, viewWhole(axis))).toBe(true)
    expect(isWhole(axis, { from: 0, to: 9_999 })).toBe(false)
  })
})

describe('ticks', () => {
  it('stand at round distances from the start', () => {
    expect(listTicks(makeScale(), 1_000)).toEqual([
      { x: 100, label: '0' },
      { x: 200, label: '2 s' },
      { x: 300, label: '4 s' },
      { x: 400, label: '6 s' },
      { x: 500, label: '8 s' },
      { x: 600, label: '10 s' },
    ])
  })

  it('leave folded time out', () => {
    const axis = foldAxis(EXTENT, [{ from: 2_000, to: 10_500 }])
    const labels = listTicks(makeScale(axis), 1_000).map((tick) => tick.label)
    expect(labels).toEqual(['0', '500 ms', '1.0 s', '10.0 s'])
  })

  it('have the precision that their distance needs', () => {
    expect(formatTick(536, 1)).toBe('536 ms')
    expect(formatTick(6_210, 10)).toBe('6.21 s')
    expect(formatTick(247_000, 1_000)).toBe('4:07')
    expect(formatTick(247_500, 100)).toBe('4:07.5')
    expect(formatTick(240_000, 60_000)).toBe('4 min')
    expect(formatTick(7_500_000, 300_000)).toBe('2 h 05 min')
    expect(formatTick(90_000_000, 3_600_000)).toBe('1 d 01 h')
  })
})

import { describe, expect, it } from 'vitest'
import { buildBandLane, buildLanes, buildSpanLane, chooseLevel, extendTo, findIdleTimes, findSpans, insertDetail, NO_ROW, type Level } from './pyramid'
import { makeBand, makeSpan, makeTimeline, START } from './samples'

function sum(values: Float32Array): number {
  return values.reduce((total, value) => total + value, 0)
}

function measureWork(level: Level): number {
  return sum(level.running) * level.bucketMs
}

describe('lane of spans', () => {
  const spans = [makeSpan('score', 0, 400), makeSpan('score', 100, 300), makeSpan('score', 650, 1_000, { failed: 1, ok: 4 })]
  const lane = buildSpanLane('score', spans, START + 1_000)

  it('has the same work, ends and failures on every level', () => {
    for (const level of lane.levels) {
      expect(measureWork(level)).toBeCloseTo(950, 1)
      expect(sum(level.ended)).toBe(7)
      expect(sum(level.failed)).toBe(1)
    }
  })

  it('halves the buckets from level to level', () => {
    expect(lane.levels.map((level) => level.running.length)).toEqual([64, 32, 16, 8, 4, 2, 1])
  })

  it('counts how many run at the same time', () => {
    const base = lane.levels[0]!
    const running = (ms: number) => base.running[Math.floor(ms / base.bucketMs)]
    expect(running(50)).toBeCloseTo(1)
    expect(running(200)).toBeCloseTo(2)
    expect(running(500)).toBeCloseTo(0)
    expect(running(800)).toBeCloseTo(1)
  })

  it('puts spans that overlap into rows', () => {
    expect([...lane.table!.row]).toEqual([0, 1, 0])
    const many = Array.from({ length: 8 }, (_, n) => makeSpan('wide', n, 100))
    expect([...buildSpanLane('wide', many, START).table!.row]).toEqual([0, 1, 2, 3, 4, 5, NO_ROW, NO_ROW])
  })

  it('finds the spans of an interval, also long ones that began before it', () => {
    const long = [makeSpan('s', 0, 1_000), makeSpan('s', 10, 20), makeSpan('s', 600, 700)]
    const { table } = buildSpanLane('s', long, START)
    expect(findSpans(table!, { from: START + 500, to: START + 550 })).toEqual({ from: 0, to: 2 })
    expect(findSpans(table!, { from: START + 1_001, to: START + 1_200 })).toEqual({ from: 3, to: 3 })
  })

  it('lets a span that has not ended reach until now', () => {
    const open = buildSpanLane('s', [makeSpan('s', 0, null)], START + 500)
    expect(open.to).toBe(START + 500)
    expect(sum(open.levels[0]!.ended)).toBe(0)
  })

  it('counts time before the start, and returned attempts, as held', () => {
    const waiting = makeSpan('s', 0, 1_000, { started: new Date(START + 600).toISOString() })
    const returned = makeSpan('s', 1_000, 1_400, { status: 'returned' })
    const level = buildSpanLane('s', [waiting, returned], START).levels[0]!
    expect(sum(level.held) * level.bucketMs).toBeCloseTo(1_000, 1)
    expect(measureWork(level)).toBeCloseTo(400, 1)
  })
})

describe('lane of a band', () => {
  it('takes running commands from those that began and ended', () => {
    const band = makeBand({ started: [2, 0, 0, 0], ended: [0, 0, 0, 2] }, 100)
    expect([...buildBandLane('s', band).levels[0]!.running]).toEqual([1, 2, 2, 1])
  })

  it('takes running commands from the time worked where they are shorter than a bucket', () => {
    const band = makeBand({ started: [50, 50], ended: [50, 50], busy_us: [80_000, 40_000] }, 100)
    const { running } = buildBandLane('s', band).levels[0]!
    expect(running[0]).toBeCloseTo(0.8)
    expect(running[1]).toBeCloseTo(0.4)
  })

  it('knows that a window may begin in the middle of commands', () => {
    const band = makeBand({ started: [0, 0], ended: [0, 1] }, 100)
    expect([...buildBandLane('s', band).levels[0]!.running]).toEqual([1, 0.5])
  })

  it('keeps items where a command has several', () => {
    const band = makeBand({ started: [1, 0], ended: [0, 1], items: [0, 1_500] }, 100)
    expect([...buildBandLane('s', band).levels[0]!.ended]).toEqual([0, 1_500])
  })
})

describe('lanes', () => {
  const data = makeTimeline(1_000, {
    spans: [makeSpan('late', 600, 700), makeSpan('early', 0, 100)],
    steps: { middle: { ...makeBand({ started: [1], ended: [1] }, 100), start: new Date(START + 300).toISOString() } },
  })

  it('are in the order in which the steps began', () => {
    expect(buildLanes(data).map((lane) => lane.step)).toEqual(['early', 'middle', 'late'])
  })

  it('take what a window knows better, in the order of the whole', () => {
    const detail = buildLanes(makeTimeline(1_000, { spans: [makeSpan('middle', 310, 320)] }))
    const lanes = insertDetail(buildLanes(data), detail)
    expect(lanes.map((lane) => [lane.step, lane.table?.spans.length ?? 0])).toEqual([
      ['early', 1],
      ['middle', 1],
      ['late', 1],
    ])
  })

  it('say when nothing works', () => {
    const idle = findIdleTimes(buildLanes(data), { from: START, to: START + 1_000 })
    expect(idle.map((gap) => [Math.round(gap.from - START), Math.round(gap.to - START)])).toEqual([
      [100, 300],
      [400, 600],
      [700, 1_000],
    ])
  })
})

describe('level', () => {
  it('is the finest with buckets of two pixels', () => {
    const lane = buildSpanLane('s', [makeSpan('s', 0, 640)], START)
    expect(chooseLevel(lane, 5).bucketMs).toBe(10)
    expect(chooseLevel(lane, 6).bucketMs).toBe(20)
    expect(chooseLevel(lane, 0.001).bucketMs).toBe(10)
    expect(chooseLevel(lane, 10_000).bucketMs).toBe(640)
  })
})

describe('of an execution that has not ended', () => {
  const data = makeTimeline(50, { spans: [makeSpan('ask', 10, null, { started: null, status: 'waiting' })] })

  it('what waits has waited until now', () => {
    const [lane] = buildLanes(extendTo(data, START + 40_000))
    expect(lane!.to).toBe(START + 40_000)
  })

  it('a clock that is behind changes nothing', () => {
    expect(extendTo(data, START)).toBe(data)
  })
})

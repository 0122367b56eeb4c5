import { describe, expect, it } from 'vitest'
import { AXIS_HEIGHT_PX, drawTimeline, type Call, type Scene } from './draw'
import { findHit } from './hit'
import { buildLanes, findIdleTimes } from './pyramid'
import { makeBand, makeSpan, makeTimeline, START, at } from './samples'
import { foldAxis, viewWhole } from './scale'
import type { TimelineView } from '../api/types'

function makeScene(data: TimelineView, more: Partial<Scene> = {}, foldIdle = false): Scene {
  const lanes = buildLanes(data)
  const extent = { from: START, to: Date.parse(data.to) }
  const axis = foldAxis(extent, foldIdle ? findIdleTimes(lanes, extent) : [])
  const scale = { axis, view: viewWhole(axis), left: 100, width: 1_000 }
  const frame = { origin: START, cursor: null, selected: null, width: 1_100, height: 200, top: 0 }
  return { lanes, marks: data.marks, scale, ...frame, ...more }
}

function pick(calls: Call[], draw: Call['draw'], paint: string): Call[] {
  return calls.filter((call) => call.draw === draw && call.paint === paint)
}

const CHUNKS = makeTimeline(1_000, {
  spans: [
    makeSpan('plan', 0, 100),
    makeSpan('score', 100, 400, { ok: 1_499, failed: 1, count: 1_500, first: 0 }),
    makeSpan('score', 400, null, { count: 1_500, first: 1_500 }),
  ],
})

describe('spans one by one', () => {
  const calls = drawTimeline(makeScene(CHUNKS))

  it('are solid once they ended and pale while they run', () => {
    expect(pick(calls, 'bars', 'solid')).toEqual([
      { draw: 'bars', paint: 'solid', boxes: [100, 32, 99, 20] },
      { draw: 'bars', paint: 'solid', boxes: [200, 60, 299, 20] },
    ])
    expect(pick(calls, 'bars', 'pale')).toEqual([{ draw: 'bars', paint: 'pale', boxes: [500, 60, 599, 20] }])
  })

  it('have a diamond for a failure, and keep their colour', () => {
    const failed = calls.filter((call) => call.paint === 'failed')
    expect(failed).toEqual([{ draw: 'diamonds', paint: 'failed', centres: [500, 70], radius: 5 }])
  })

  it('are hatched while they wait and when they are returned', () => {
    const data = makeTimeline(1_000, {
      spans: [
        makeSpan('s', 0, 500, { started: at(100) }),
        makeSpan('s', 500, 700, { status: 'returned' }),
        makeSpan('s', 700, null, { status: 'waiting', started: null }),
      ],
    })
    expect(pick(drawTimeline(makeScene(data)), 'hatch', 'waiting')).toEqual([
      { draw: 'hatch', paint: 'waiting', boxes: [100, 32, 100, 20, 600, 32, 199, 20, 800, 32, 300, 20] },
    ])
  })
})

describe('strip of buckets', () => {
  const band = makeBand(
    { started: [4, 0, 0, 0], ended: [0, 0, 0, 4], items: [0, 0, 100, 300], failed: [0, 0, 1, 0], retried: [0, 9, 0, 0] },
    250,
  )
  const calls = drawTimeline(makeScene(makeTimeline(1_000, { steps: { score: band } })))

  it('is pale where commands run and solid where they end', () => {
    expect(pick(calls, 'bars', 'pale')).toEqual([
      { draw: 'bars', paint: 'pale', boxes: [100, 42, 250, 10, 350, 32, 250, 20, 600, 32, 250, 20, 850, 42, 250, 10] },
    ])
    expect(pick(calls, 'bars', 'solid')).toEqual([
      { draw: 'bars', paint: 'solid', boxes: [600, 45, 250, 7, 850, 32, 250, 20] },
    ])
  })

  it('has a hatched edge where commands are tried again', () => {
    expect(pick(calls, 'hatch', 'waiting')).toEqual([{ draw: 'hatch', paint: 'waiting', boxes: [350, 32, 250, 5] }])
  })

  it('is hatched where something waits and nothing runs', () => {
    const waits = Array.from({ length: 20 }, (_, n) => makeSpan('s', 0, 600 + n, { started: at(500) }))
    const strip = drawTimeline(makeScene(makeTimeline(1_000, { spans: waits })))
    const [hatch] = pick(strip, 'hatch', 'waiting')
    const boxes = hatch?.draw === 'hatch' ? hatch.boxes : []
    expect(boxes[0]).toBe(100)
    expect(boxes.at(-4)! + boxes.at(-2)!).toBeLessThanOrEqual(600)
  })

  it('has a diamond where something failed', () => {
    expect(pick(calls, 'diamonds', 'failed')).toEqual([
      { draw: 'diamonds', paint: 'failed', centres: [725, 42], radius: 5 },
    ])
  })

  it('has one diamond for failures that would lie on each other, at every zoom', () => {
    const spans = Array.from({ length: 4_000 }, (_, n) => {
      return makeSpan('score', n, n + 1, n % 1_000 < 3 ? { failed: 1, ok: 0, status: 'failed' } : {})
    })
    const data = makeTimeline(4_000, { spans })
    const countDiamonds = (scene: Scene) => {
      const [call] = pick(drawTimeline(scene), 'diamonds', 'failed')
      return call?.draw === 'diamonds' ? call.centres.length / 2 : 0
    }
    const scene = makeScene(data)
    expect(countDiamonds(scene)).toBe(4)
    expect(countDiamonds({ ...scene, scale: { ...scene.scale, width: 200 } })).toBe(4)
    const near = { ...scene, scale: { ...scene.scale, view: { from: 0, to: 40 } } }
    expect(countDiamonds(near)).toBe(3)
  })
})

describe('frame', () => {
  it('draws only the lanes on the screen', () => {
    const steps = Array.from({ length: 300 }, (_, n) => makeSpan(`step ${n}`, n, n + 50))
    const scene = makeScene(makeTimeline(1_000, { spans: steps }), { top: 2_800 })
    const names = drawTimeline(scene).flatMap((call) => {
      return call.draw === 'text' && call.text.startsWith('step') ? [call.text] : []
    })
    expect(names).toEqual(['step 100', 'step 101', 'step 102', 'step 103', 'step 104', 'step 105', 'step 106'])
  })

  it('marks the selected lane, the cursor and folded time', () => {
    const data = makeTimeline(1_000, { spans: [makeSpan('a', 0, 200), makeSpan('b', 800, 1_000)] })
    const calls = drawTimeline(makeScene(data, { selected: 'b', cursor: START + 100 }, true))
    expect(pick(calls, 'bars', 'selected')[0]).toEqual({ draw: 'bars', paint: 'selected', boxes: [0, 56, 1_100, 28] })
    expect(pick(calls, 'bars', 'folded')).toHaveLength(1)
    const cursor = pick(calls, 'bars', 'cursor')[0]
    expect(cursor?.draw === 'bars' && cursor.boxes[0]).toBe(342)
  })

  it('draws nothing outside of the plot for lanes that are elsewhere in time', () => {
    const scene = makeScene(CHUNKS)
    const late = { ...scene, scale: { ...scene.scale, view: { from: 500, to: 1_000 } } }
    expect(pick(drawTimeline(late), 'bars', 'solid')).toEqual([])
  })
})

describe('hit', () => {
  const scene = makeScene(CHUNKS, { cursor: START + 900 })

  it('finds the cursor first, then axis, label and span', () => {
    expect(findHit(scene, 1_003, 70)).toEqual({ on: 'cursor' })
    expect(findHit(scene, 350, 5)).toEqual({ on: 'axis', time: START + 250 })
    expect(findHit(scene, 20, AXIS_HEIGHT_PX + 40)).toEqual({ on: 'label', step: 'score' })
    const hit = findHit(scene, 300, 66)
    expect(hit?.on === 'lane' && hit.span?.command_id).toBe('score-100')
  })

  it('finds the step where no span is', () => {
    const hit = findHit(scene, 600, AXIS_HEIGHT_PX + 14)
    expect(hit).toEqual({ on: 'lane', step: 'plan', time: START + 500, span: null, bucket: null })
    expect(findHit(scene, 600, 190)).toBeNull()
  })

  it('finds a bucket of a strip and its figures', () => {
    const band = makeBand({ started: [4, 0], ended: [0, 4], failed: [0, 2] }, 500)
    const strip = makeScene(makeTimeline(1_000, { steps: { score: band } }))
    const hit = findHit(strip, 700, 38)
    expect(hit?.on === 'lane' && hit.bucket).toMatchObject({ from: START + 500, running: 2, ended: 4, failed: 2 })
  })
})

// What of a timeline is at a point of its canvas.
import type { SpanView } from '../api/types'
import {
  AXIS_HEIGHT_PX,
  BAND_HEIGHT_PX,
  findDrawableSpans,
  findWindow,
  LANE_HEIGHT_PX,
  listFolds,
  listShownLanes,
  placeRow,
  type Scene,
  type ShownLane,
} from './draw'
import { chooseLevel, type Lane } from './pyramid'
import { countMsPerPixel, pixelToTime, timeToPixel, type Interval } from './scale'

// Means and counts of a bucket.
export interface BucketFacts extends Interval {
  running: number
  ended: number
  failed: number
}

export type Hit =
  | { on: 'cursor' }
  | { on: 'axis'; time: number }
  | { on: 'fold'; idle: Interval }
  | { on: 'lane'; step: string; time: number; span: SpanView | null; bucket: BucketFacts | null }
  | { on: 'label'; step: string }

const CURSOR_REACH_PX = 6
const SPAN_REACH_PX = 3

export function findHit(scene: Scene, x: number, y: number): Hit | null {
  const { scale } = scene
  if (isOnCursor(scene, x)) return { on: 'cursor' }
  const time = pixelToTime(scale, x)
  if (y < AXIS_HEIGHT_PX) return x < scale.left ? null : { on: 'axis', time }
  const shown = listShownLanes(scene).find((lane) => y >= lane.y && y < lane.y + LANE_HEIGHT_PX)
  if (shown !== undefined && x < scale.left) return { on: 'label', step: shown.lane.step }
  const fold = listFolds(scale).find((candidate) => x >= candidate.x && x < candidate.x + candidate.width)
  if (fold !== undefined) return { on: 'fold', idle: { from: fold.piece.from, to: fold.piece.to } }
  if (shown === undefined) return null
  return hitLane(scene, shown, x, y, time)
}

export function isOnCursor(scene: Scene, x: number): boolean {
  if (scene.cursor === null || x < scene.scale.left) return false
  return Math.abs(timeToPixel(scene.scale, scene.cursor) - x) <= CURSOR_REACH_PX
}

function hitLane(scene: Scene, shown: ShownLane, x: number, y: number, time: number): Hit {
  const { lane } = shown
  const window = findWindow(scene.scale)
  const visible = findDrawableSpans(scene.scale, lane, window)
  if (visible === null) return { on: 'lane', step: lane.step, time, span: null, bucket: findBucket(scene, lane, time) }
  const bandY = shown.y + (LANE_HEIGHT_PX - BAND_HEIGHT_PX) / 2
  const table = lane.table!
  for (let n = visible.from; n < visible.to; n += 1) {
    const row = placeRow(table, n, bandY)
    const isInRow = y >= row.y - 1 && y <= row.y + row.height + 1
    const from = timeToPixel(scene.scale, table.shownFrom[n]!) - SPAN_REACH_PX
    const to = timeToPixel(scene.scale, table.ended[n]!) + SPAN_REACH_PX
    if (isInRow && x >= from && x <= to) {
      return { on: 'lane', step: lane.step, time, span: table.spans[n]!, bucket: null }
    }
  }
  return { on: 'lane', step: lane.step, time, span: null, bucket: null }
}

function findBucket(scene: Scene, lane: Lane, time: number): BucketFacts | null {
  const level = chooseLevel(lane, countMsPerPixel(scene.scale))
  const n = Math.floor((time - lane.from) / level.bucketMs)
  if (n < 0 || n >= level.running.length) return null
  const from = lane.from + n * level.bucketMs
  return {
    from,
    to: from + level.bucketMs,
    running: level.running[n]!,
    ended: level.ended[n]!,
    failed: level.failed[n]!,
  }
}

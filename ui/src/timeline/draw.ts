// The drawing calls of a timeline, computed from its lanes. `paint.ts` carries them out on a canvas.
import type { MarkView } from '../api/types'
import { parseMoment } from './moments'
import { chooseLevel, countFailures, findSpans, isHeld, NO_ROW, type Lane, type Level, type SpanTable } from './pyramid'
import { countMsPerPixel, listTicks, pixelToTime, timeToPixel, type Interval, type Piece, type Scale } from './scale'

export type Paint =
  | 'surface'
  | 'selected'
  | 'grid'
  | 'folded'
  | 'text'
  | 'muted'
  | 'pale'
  | 'solid'
  | 'failed'
  | 'waiting'
  | 'cursor'

// `boxes` holds x, y, width and height of each box one after the other; `centres` holds x and y.
export type Call =
  | { draw: 'bars'; paint: Paint; boxes: number[] }
  | { draw: 'hatch'; paint: Paint; boxes: number[] }
  | { draw: 'diamonds'; paint: Paint; centres: number[]; radius: number }
  | { draw: 'rings'; paint: Paint; centres: number[]; radius: number }
  | { draw: 'text'; paint: Paint; text: string; x: number; y: number; maxWidth: number; align: 'left' | 'center' }

export interface Scene {
  lanes: Lane[]
  marks: MarkView[]
  scale: Scale
  // The moment that offsets on the axis count from.
  origin: number
  cursor: number | null
  selected: string | null
  width: number
  height: number
  // How far the lanes are scrolled.
  top: number
}

export const AXIS_HEIGHT_PX = 28
export const LANE_HEIGHT_PX = 28
export const BAND_HEIGHT_PX = 20
export const DIAMOND_RADIUS_PX = 5
const MARK_RADIUS_PX = 3
const MIN_DIAMOND_DISTANCE_PX = 12
const MIN_BAR_PX = 1
const MIN_PX_PER_SPAN = 8
const MAX_CLOSE_SPANS = 8
const MIN_SOLID_PX = 2
const ROW_GAP_PX = 1
const RETRY_HEIGHT_PX = 5
const MIN_HELD = 0.05
const LABEL_INSET_PX = 12
const AXIS_LABEL_Y_PX = 11
const MIN_TICK_LABEL_PX = 40
const CURSOR_HANDLE_PX = 8

export function drawTimeline(scene: Scene): Call[] {
  const shown = listShownLanes(scene)
  return [
    { draw: 'bars', paint: 'surface', boxes: [0, 0, scene.width, scene.height] },
    ...drawSelection(scene),
    ...drawFolds(scene),
    ...drawGrid(scene),
    ...shown.flatMap(({ lane, y }) => drawLane(scene, lane, y)),
    ...drawGutter(scene, shown),
    ...drawAxis(scene),
    ...drawCursor(scene),
  ]
}

export interface ShownLane {
  lane: Lane
  // Top of the lane on the canvas.
  y: number
}

export function listShownLanes(scene: Scene): ShownLane[] {
  const first = Math.floor(scene.top / LANE_HEIGHT_PX)
  const last = Math.ceil((scene.top + scene.height - AXIS_HEIGHT_PX) / LANE_HEIGHT_PX)
  return scene.lanes.slice(first, last).map((lane, n) => ({
    lane,
    y: AXIS_HEIGHT_PX + (first + n) * LANE_HEIGHT_PX - scene.top,
  }))
}

function drawSelection(scene: Scene): Call[] {
  const index = scene.lanes.findIndex((lane) => lane.step === scene.selected)
  if (index < 0) return []
  const y = AXIS_HEIGHT_PX + index * LANE_HEIGHT_PX - scene.top
  return [{ draw: 'bars', paint: 'selected', boxes: [0, y, scene.width, LANE_HEIGHT_PX] }]
}

function drawGrid(scene: Scene): Call[] {
  const boxes = listTicks(scene.scale, scene.origin).flatMap((tick) => [
    Math.round(tick.x),
    AXIS_HEIGHT_PX,
    1,
    scene.height - AXIS_HEIGHT_PX,
  ])
  return [{ draw: 'bars', paint: 'grid', boxes }]
}

function drawFolds(scene: Scene): Call[] {
  const boxes = listFolds(scene.scale).flatMap((fold) => [
    fold.x,
    AXIS_HEIGHT_PX,
    fold.width,
    scene.height - AXIS_HEIGHT_PX,
  ])
  return boxes.length === 0 ? [] : [{ draw: 'bars', paint: 'folded', boxes }]
}

export function listFolds(scale: Scale): { piece: Piece; x: number; width: number }[] {
  const right = scale.left + scale.width
  return scale.axis.pieces
    .filter((piece) => piece.folded)
    .map((piece) => {
      const x = Math.round(timeToPixel(scale, piece.from))
      return { piece, x, width: Math.max(1, Math.round(timeToPixel(scale, piece.to)) - x) }
    })
    .filter((fold) => fold.x < right && fold.x + fold.width > scale.left)
}

export function findWindow(scale: Scale): Interval {
  return { from: pixelToTime(scale, scale.left), to: pixelToTime(scale, scale.left + scale.width) }
}

function drawLane(scene: Scene, lane: Lane, y: number): Call[] {
  const window = findWindow(scene.scale)
  if (lane.to < window.from || lane.from > window.to) return drawMarks(scene, lane, y)
  const bandY = y + (LANE_HEIGHT_PX - BAND_HEIGHT_PX) / 2
  const visible = findDrawableSpans(scene.scale, lane, window)
  const calls =
    visible === null
      ? drawStrip(scene.scale, lane, window, bandY)
      : drawSpans(scene.scale, lane.table!, visible, bandY)
  return [...calls, ...drawMarks(scene, lane, y)]
}

// The spans to draw one by one, or null while they are too many for it.
export function findDrawableSpans(scale: Scale, lane: Lane, window: Interval): { from: number; to: number } | null {
  const table = lane.table
  if (table === null) return null
  const range = findSpans(table, window)
  const left = timeToPixel(scale, Math.max(lane.from, window.from))
  const right = timeToPixel(scale, Math.min(lane.to, window.to))
  const count = range.to - range.from
  if (count > MAX_CLOSE_SPANS && count * MIN_PX_PER_SPAN > (right - left) * table.rows) return null
  for (let n = range.from; n < range.to; n += 1) {
    if (table.row[n] === NO_ROW) return null
  }
  return range
}

function drawStrip(scale: Scale, lane: Lane, window: Interval, y: number): Call[] {
  const level = chooseLevel(lane, countMsPerPixel(scale))
  const first = Math.max(0, Math.floor((window.from - lane.from) / level.bucketMs))
  const last = Math.min(level.running.length, Math.ceil((window.to - lane.from) / level.bucketMs))
  const pale: number[] = []
  const solid: number[] = []
  const held: number[] = []
  const failures: number[] = []
  let x = Math.round(timeToPixel(scale, lane.from + first * level.bucketMs))
  for (let n = first; n < last; n += 1) {
    const next = Math.round(timeToPixel(scale, lane.from + (n + 1) * level.bucketMs))
    const width = Math.max(MIN_BAR_PX, next - x)
    addColumn(pale, x, y, width, level.running[n]!, level.peakRunning)
    addColumn(solid, x, y, width, level.ended[n]!, level.peakEnded)
    if (isOnlyHeld(level, n)) held.push(x, y, width, BAND_HEIGHT_PX)
    if (level.retried[n]! > 0) held.push(x, y, width, RETRY_HEIGHT_PX)
    if (level.failed[n]! > 0) failures.push(x + width / 2)
    x = next
  }
  return keepFilled([
    { draw: 'bars', paint: 'pale', boxes: pale },
    { draw: 'bars', paint: 'solid', boxes: solid },
    { draw: 'hatch', paint: 'waiting', boxes: held },
    { draw: 'diamonds', paint: 'failed', centres: placeDiamonds(failures, y), radius: DIAMOND_RADIUS_PX },
  ])
}

// Waiting for a free worker is part of every loop: only a bucket in which nothing runs is hatched.
function isOnlyHeld(level: Level, n: number): boolean {
  return level.held[n]! > MIN_HELD && level.running[n]! < MIN_HELD
}

function addColumn(boxes: number[], x: number, y: number, width: number, value: number, peak: number): void {
  if (value <= 0) return
  const height = Math.max(MIN_SOLID_PX, Math.round((value / peak) * BAND_HEIGHT_PX))
  boxes.push(x, y + BAND_HEIGHT_PX - height, width, height)
}

// One diamond for failures that are closer together than a diamond is wide.
function placeDiamonds(failures: number[], y: number): number[] {
  const centres: number[] = []
  let before = -Infinity
  for (const x of failures) {
    if (x - before < MIN_DIAMOND_DISTANCE_PX) continue
    centres.push(x, y + BAND_HEIGHT_PX / 2)
    before = x
  }
  return centres
}

function drawSpans(scale: Scale, table: SpanTable, range: { from: number; to: number }, y: number): Call[] {
  const pale: number[] = []
  const solid: number[] = []
  const held: number[] = []
  const failures: { x: number; y: number }[] = []
  for (let n = range.from; n < range.to; n += 1) {
    const span = table.spans[n]!
    const { y: rowY, height } = placeRow(table, n, y)
    const from = timeToPixel(scale, table.shownFrom[n]!)
    const start = timeToPixel(scale, table.started[n]!)
    const end = timeToPixel(scale, table.ended[n]!)
    const body = [start, rowY, Math.max(MIN_SOLID_PX, end - start - ROW_GAP_PX), height]
    if (start - from > MIN_SOLID_PX) held.push(from, rowY, start - from, height)
    if (isHeld(span) && end > start) held.push(...body)
    else if (isHeld(span)) continue
    else if (span.ended === null || span.status === 'failed') pale.push(...body)
    else solid.push(...body)
    if (countFailures(span) > 0) failures.push({ x: end, y: rowY + height / 2 })
  }
  return keepFilled([
    { draw: 'hatch', paint: 'waiting', boxes: held },
    { draw: 'bars', paint: 'pale', boxes: pale },
    { draw: 'bars', paint: 'solid', boxes: solid },
    { draw: 'diamonds', paint: 'failed', centres: spreadDiamonds(failures), radius: DIAMOND_RADIUS_PX },
  ])
}

function spreadDiamonds(failures: { x: number; y: number }[]): number[] {
  const ordered = [...failures].sort((a, b) => a.x - b.x)
  const centres: number[] = []
  let before = -Infinity
  for (const { x, y } of ordered) {
    if (x - before < MIN_DIAMOND_DISTANCE_PX) continue
    centres.push(x, y)
    before = x
  }
  return centres
}

export function placeRow(table: SpanTable, n: number, y: number): { y: number; height: number } {
  const rowHeight = BAND_HEIGHT_PX / table.rows
  const gap = table.rows > 1 ? ROW_GAP_PX : 0
  return { y: y + table.row[n]! * rowHeight, height: rowHeight - gap }
}

// Rings for what held the step up. Failures have diamonds of their own.
function drawMarks(scene: Scene, lane: Lane, y: number): Call[] {
  const centreY = y + LANE_HEIGHT_PX / 2
  const centres: number[] = []
  for (const mark of scene.marks) {
    if (mark.step !== lane.step || mark.kind === 'failed') continue
    centres.push(timeToPixel(scene.scale, parseMoment(mark.at)), centreY)
  }
  return keepFilled([{ draw: 'rings', paint: 'waiting', centres, radius: MARK_RADIUS_PX }])
}

function keepFilled(calls: Call[]): Call[] {
  return calls.filter((call) => {
    if (call.draw === 'text') return true
    return (call.draw === 'bars' || call.draw === 'hatch' ? call.boxes : call.centres).length > 0
  })
}

function drawGutter(scene: Scene, shown: ShownLane[]): Call[] {
  const left = scene.scale.left
  const selected = drawSelection(scene).map((call) => {
    return call.draw === 'bars' ? { ...call, boxes: [0, call.boxes[1]!, left, call.boxes[3]!] } : call
  })
  const labels = shown.map(({ lane, y }): Call => {
    const paint = lane.step === scene.selected ? 'text' : 'muted'
    const maxWidth = left - LABEL_INSET_PX * 2
    const middle = y + LANE_HEIGHT_PX / 2
    return { draw: 'text', paint, text: lane.step, x: LABEL_INSET_PX, y: middle, maxWidth, align: 'left' }
  })
  return [{ draw: 'bars', paint: 'surface', boxes: [0, 0, left, scene.height] }, ...selected, ...labels]
}

function drawAxis(scene: Scene): Call[] {
  const { scale } = scene
  const right = scale.left + scale.width
  const labels = listTicks(scale, scene.origin)
    .filter((tick) => tick.x < right - MIN_TICK_LABEL_PX)
    .map((tick): Call => {
      const maxWidth = right - tick.x
      return { draw: 'text', paint: 'muted', text: tick.label, x: tick.x + 4, y: AXIS_LABEL_Y_PX, maxWidth, align: 'left' }
    })
  const folds = listFolds(scale).map((fold): Call => {
    const x = fold.x + fold.width / 2
    return { draw: 'text', paint: 'muted', text: '⋯', x, y: AXIS_LABEL_Y_PX, maxWidth: fold.width, align: 'center' }
  })
  return [
    { draw: 'bars', paint: 'surface', boxes: [0, 0, scene.width, AXIS_HEIGHT_PX] },
    { draw: 'bars', paint: 'grid', boxes: [0, AXIS_HEIGHT_PX - 1, scene.width, 1] },
    ...labels,
    ...folds,
  ]
}

function drawCursor(scene: Scene): Call[] {
  if (scene.cursor === null) return []
  const x = Math.round(timeToPixel(scene.scale, scene.cursor))
  if (x < scene.scale.left || x > scene.scale.left + scene.scale.width) return []
  return [
    { draw: 'bars', paint: 'cursor', boxes: [x - 1, AXIS_HEIGHT_PX, 2, scene.height - AXIS_HEIGHT_PX] },
    { draw: 'bars', paint: 'cursor', boxes: [x - 4, AXIS_HEIGHT_PX - CURSOR_HANDLE_PX, CURSOR_HANDLE_PX, CURSOR_HANDLE_PX] },
  ]
}

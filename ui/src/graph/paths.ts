// The lines of arcs, as path data of SVG.
import type { GraphArcView } from '../api/types'
import { LABEL_HEIGHT_PX, measureLabel, STEP_HEIGHT_PX, STEP_WIDTH_PX, type ArcPlace, type Layout, type Point } from './layout'
import { labelArc, MARK_CHARACTERS } from './facts'

export const ARROW_SIZE_PX = 7
export const ARROW_PATH = `M0 0L${ARROW_SIZE_PX} ${ARROW_SIZE_PX / 2}L0 ${ARROW_SIZE_PX}z`
const SAME_PLACE_PX = 1

// A curve through the points of the layout. An arc that leads onward leaves and enters steps at the middle of a side; one that leads
// back does so beside it, where no other arc begins.
export function traceArc(arc: GraphArcView, layout: Layout): string {
  const place = layout.arcs[arc.id]!
  const isAcross = layout.direction === 'LR'
  // The curve is computed from left to right; from top to bottom both axes change their parts.
  const turn = (point: Point) => (isAcross ? point : { x: point.y, y: point.x })
  if (arc.from === arc.to) return traceSpline(place.points)
  const length = isAcross ? STEP_WIDTH_PX : STEP_HEIGHT_PX
  const breadth = isAcross ? STEP_HEIGHT_PX : STEP_WIDTH_PX
  const from = turn(layout.steps[arc.from]!)
  const to = turn(layout.steps[arc.to]!)
  const between = listBetween(arc, place, isAcross, from.x < to.x).map(turn)
  const isForward = to.x - from.x > length
  const sign = isForward ? 1 : -1
  const aside = isForward ? 0 : findAside(between, from, to) * (breadth / 4)
  const start = { x: from.x + sign * (length / 2), y: from.y + aside }
  const end = { x: to.x - sign * (length / 2), y: to.y + aside }
  return traceCurve([start, ...between, end], turn)
}

// The points between two steps. The line reaches the height of its label before it, so that it does not cross the labels of others.
function listBetween(arc: GraphArcView, { points, label }: ArcPlace, isAcross: boolean, isForward: boolean): Point[] {
  const between = points.slice(1, -1)
  if (label === null) return between.length <= 1 ? [] : between
  const width = measureLabel(labelArc(arc).length + MARK_CHARACTERS)
  const half = ((isForward ? 1 : -1) * (isAcross ? width : LABEL_HEIGHT_PX)) / 2
  const before = isAcross ? { x: label.x - half, y: label.y } : { x: label.x, y: label.y - half }
  const after = isAcross ? { x: label.x + half, y: label.y } : { x: label.x, y: label.y + half }
  const at = between.findIndex((point) => Math.hypot(point.x - label.x, point.y - label.y) < SAME_PLACE_PX)
  return at < 0 ? between : between.toSpliced(at, 1, before, after)
}

function findAside(between: Point[], from: Point, to: Point): 1 | -1 {
  const mean = between.reduce((sum, point) => sum + point.y, 0) / Math.max(1, between.length)
  return mean < (from.y + to.y) / 2 ? -1 : 1
}

// Every piece begins and ends along the direction of the graph, so that pieces join without a corner.
function traceCurve(points: Point[], turn: (point: Point) => Point): string {
  const format = (point: Point) => formatPoint(turn(point))
  const parts = [`M${format(points[0]!)}`]
  for (let n = 1; n < points.length; n += 1) {
    const a = points[n - 1]!
    const b = points[n]!
    const middle = (a.x + b.x) / 2
    const isStraight = Math.abs(a.y - b.y) < SAME_PLACE_PX
    if (isStraight) parts.push(`L${format(b)}`)
    else parts.push(`C${format({ x: middle, y: a.y })} ${format({ x: middle, y: b.y })} ${format(b)}`)
  }
  return parts.join('')
}

// A smooth line through all points (Catmull-Rom): for arcs that lead to their own step.
function traceSpline(points: Point[]): string {
  const parts = [`M${formatPoint(points[0]!)}`]
  for (let n = 0; n < points.length - 1; n += 1) {
    const before = points[Math.max(0, n - 1)]!
    const a = points[n]!
    const b = points[n + 1]!
    const after = points[Math.min(points.length - 1, n + 2)]!
    const first = { x: a.x + (b.x - before.x) / 6, y: a.y + (b.y - before.y) / 6 }
    const second = { x: b.x - (after.x - a.x) / 6, y: b.y - (after.y - a.y) / 6 }
    parts.push(`C${formatPoint(first)} ${formatPoint(second)} ${formatPoint(b)}`)
  }
  return parts.join('')
}

function formatPoint({ x, y }: Point): string {
  return `${Math.round(x * 10) / 10} ${Math.round(y * 10) / 10}`
}

// The lines of arcs, as path data of SVG.
import type { GraphArcView } from '../api/types'
import { measureLabel, measureLabelHeight, STEP_HEIGHT_PX, STEP_WIDTH_PX, type Layout, type Point } from './layout'
import { measureArcLabel } from './facts'

export const ARROW_SIZE_PX = 7
export const ARROW_PATH = `M0 0L${ARROW_SIZE_PX} ${ARROW_SIZE_PX / 2}L0 ${ARROW_SIZE_PX}z`
const SAME_PLACE_PX = 1

// The half lengths of the labels of each rank, by the place of the rank along the graph. All lines pass a rank at the height of their
// points, from where the longest label of the rank begins to where it ends: so none of them runs behind a label of another one.
export type RankLabels = ReadonlyMap<number, number>

export function measureRankLabels(arcs: readonly GraphArcView[], layout: Layout): RankLabels {
  const isAcross = layout.direction === 'LR'
  const halves = new Map<number, number>()
  for (const arc of arcs) {
    const label = layout.arcs[arc.id]?.label ?? null
    if (label === null) continue
    const { length, lines } = measureArcLabel(arc)
    const half = (isAcross ? measureLabel(length) : measureLabelHeight(lines)) / 2
    const rank = Math.round(isAcross ? label.x : label.y)
    halves.set(rank, Math.max(half, halves.get(rank) ?? 0))
  }
  return halves
}

// A curve through the points of the layout. An arc that leads onward leaves and enters steps at the middle of a side; one that leads
// back does so beside it, where no other arc begins.
export function traceArc(arc: GraphArcView, layout: Layout, labels: RankLabels): string {
  const place = layout.arcs[arc.id]!
  const isAcross = layout.direction === 'LR'
  // The curve is computed from left to right; from top to bottom both axes change their parts.
  const turn = (point: Point) => (isAcross ? point : { x: point.y, y: point.x })
  if (arc.from === arc.to) return traceSpline(place.points)
  const length = isAcross ? STEP_WIDTH_PX : STEP_HEIGHT_PX
  const breadth = isAcross ? STEP_HEIGHT_PX : STEP_WIDTH_PX
  const from = turn(layout.steps[arc.from]!)
  const to = turn(layout.steps[arc.to]!)
  const between = listBetween(place.points.slice(1, -1).map(turn), labels, from.x < to.x)
  const isForward = to.x - from.x > length
  const sign = isForward ? 1 : -1
  const aside = isForward ? 0 : findAside(between, from, to) * (breadth / 4)
  const start = { x: from.x + sign * (length / 2), y: from.y + aside }
  const end = { x: to.x - sign * (length / 2), y: to.y + aside }
  return traceCurve([start, ...between, end], turn)
}

function listBetween(points: Point[], labels: RankLabels, isForward: boolean): Point[] {
  const sign = isForward ? 1 : -1
  return points.flatMap((point) => {
    const half = labels.get(Math.round(point.x))
    if (half !== undefined) return [{ x: point.x - sign * half, y: point.y }, { x: point.x + sign * half, y: point.y }]
    return points.length === 1 ? [] : [point]
  })
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

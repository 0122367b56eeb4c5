// The places of steps when a layout takes too long: a column per depth. Pure and quick.
import { groupBy } from './group'
import {
  measureLabel,
  measureLabelHeight,
  STEP_HEIGHT_PX,
  STEP_WIDTH_PX,
  type ArcPlace,
  type ArcRequest,
  type Layout,
  type LayoutRequest,
  type Point,
} from './layout'

const STEP_DISTANCE_PX = 24
const RANK_DISTANCE_PX = 60
const MARGIN_PX = 8
const MAX_LABEL_LINES = 2
const ARROW_ROOM_PX = 10

export function layOutColumns(request: LayoutRequest): Layout {
  const isAcross = request.direction === 'LR'
  const depths = findDepths(request)
  const byDepth = groupBy(request.steps, (step) => depths.get(step)!)
  const count = byDepth.size
  const stepLength = isAcross ? STEP_WIDTH_PX : STEP_HEIGHT_PX
  const stepBreadth = isAcross ? STEP_HEIGHT_PX : STEP_WIDTH_PX
  const steps: Record<string, Point> = {}
  let along = MARGIN_PX
  let broadest = 0
  for (let depth = 0; depth < count; depth += 1) {
    const column = byDepth.get(depth)!
    for (const [n, step] of column.entries()) {
      const across = MARGIN_PX + n * (stepBreadth + STEP_DISTANCE_PX) + stepBreadth / 2
      const middle = along + stepLength / 2
      steps[step] = isAcross ? { x: middle, y: across } : { x: across, y: middle }
    }
    broadest = Math.max(broadest, column.length)
    along += stepLength + RANK_DISTANCE_PX + measureGap(request, depths, depth)
  }
  const breadth = MARGIN_PX * 2 + broadest * (stepBreadth + STEP_DISTANCE_PX) - STEP_DISTANCE_PX
  const length = along + MARGIN_PX
  const arcs = Object.fromEntries(request.arcs.map((arc) => [arc.id, placeArc(arc, steps, isAcross)]))
  const size = isAcross ? { width: length, height: breadth } : { width: breadth, height: length }
  return { direction: request.direction, steps, arcs, ...size }
}

// How far a step is from a first one, by its shortest way. Steps that nothing leads to are first ones.
export function findDepths(request: LayoutRequest): Map<string, number> {
  const targets = groupBy(request.arcs, (arc) => arc.from)
  const reached = new Set(request.arcs.filter((arc) => arc.from !== arc.to).map((arc) => arc.to))
  const depths = new Map<string, number>()
  const starts = request.steps.filter((step) => !reached.has(step))
  const spread = (roots: string[]) => {
    const queue = roots
    for (const root of roots) depths.set(root, 0)
    for (let n = 0; n < queue.length; n += 1) {
      for (const arc of targets.get(queue[n]!) ?? []) {
        if (depths.has(arc.to)) continue
        depths.set(arc.to, depths.get(queue[n]!)! + 1)
        queue.push(arc.to)
      }
    }
  }
  spread(starts)
  // What is left are circles that nothing leads to.
  for (const step of request.steps) if (!depths.has(step)) spread([step])
  return depths
}

function measureGap(request: LayoutRequest, depths: Map<string, number>, depth: number): number {
  if (request.direction === 'TB') return measureLabelHeight(MAX_LABEL_LINES)
  const labels = request.arcs.filter((arc) => depths.get(arc.from) === depth).map((arc) => measureLabel(arc.labelLength))
  return Math.max(0, ...labels)
}

function placeArc(arc: ArcRequest, steps: Record<string, Point>, isAcross: boolean): ArcPlace {
  const from = steps[arc.from]!
  const to = steps[arc.to]!
  const start = isAcross ? { x: from.x + STEP_WIDTH_PX / 2, y: from.y } : { x: from.x, y: from.y + STEP_HEIGHT_PX / 2 }
  const end = isAcross ? { x: to.x - STEP_WIDTH_PX / 2, y: to.y } : { x: to.x, y: to.y - STEP_HEIGHT_PX / 2 }
  const isForward = isAcross ? end.x > start.x : end.y > start.y
  if (!isForward) {
    const below = { x: from.x, y: from.y + STEP_HEIGHT_PX / 2 + STEP_DISTANCE_PX / 2 }
    return { points: [start, below, end], label: arc.labelLength === 0 ? null : below }
  }
  return { points: [start, end], label: arc.labelLength === 0 ? null : placeLabel(end, arc, isAcross) }
}

// Beside the step that the arc leads to, since each of them has a row of its own.
function placeLabel(end: Point, arc: ArcRequest, isAcross: boolean): Point {
  if (!isAcross) return { x: end.x, y: end.y - measureLabelHeight(arc.labelLines) - ARROW_ROOM_PX }
  const distance = measureLabel(arc.labelLength) / 2 + RANK_DISTANCE_PX / 3
  return { x: end.x - distance, y: end.y }
}

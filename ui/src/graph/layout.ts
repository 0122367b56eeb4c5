// Places for the steps and arcs of a playbook. Pure; it runs in a worker, since large graphs take a second.
import { Graph, layout } from '@dagrejs/dagre'
import { orderSiblings } from './order'

export type Direction = 'LR' | 'TB'

export interface Point {
  x: number
  y: number
}

export interface ArcRequest {
  id: string
  from: string
  to: string
  // How many characters the label of the arc may have; 0 for none.
  labelLength: number
  labelLines: number
}

export interface LayoutRequest {
  steps: string[]
  arcs: ArcRequest[]
  direction: Direction
}

export interface ArcPlace {
  points: Point[]
  // The middle of the label.
  label: Point | null
}

export interface Layout {
  direction: Direction
  // The middle of each step.
  steps: Record<string, Point>
  arcs: Record<string, ArcPlace>
  width: number
  height: number
}

export const STEP_WIDTH_PX = 160
export const STEP_HEIGHT_PX = 76
export const LABEL_LINE_PX = 15
export const LABEL_CHARACTER_PX = 7.25
const LABEL_PADDING_PX = 10
const LABEL_MARGIN_PX = 5
const STEP_DISTANCE_PX = 20
const ARC_DISTANCE_PX = 14
const RANK_DISTANCE_PX = 46
const MARGIN_PX = 8

export function measureLabel(length: number): number {
  return length === 0 ? 0 : Math.ceil(length * LABEL_CHARACTER_PX + LABEL_PADDING_PX)
}

export function measureLabelHeight(lines: number): number {
  return lines === 0 ? 0 : lines * LABEL_LINE_PX + LABEL_MARGIN_PX
}

export function layOutGraph(request: LayoutRequest): Layout {
  const graph = new Graph({ multigraph: true })
  graph.setGraph({
    rankdir: request.direction,
    nodesep: STEP_DISTANCE_PX,
    edgesep: ARC_DISTANCE_PX,
    ranksep: RANK_DISTANCE_PX,
    marginx: MARGIN_PX,
    marginy: MARGIN_PX,
    ranker: rankEarly,
  })
  for (const step of request.steps) graph.setNode(step, { width: STEP_WIDTH_PX, height: STEP_HEIGHT_PX })
  for (const arc of request.arcs) {
    const width = measureLabel(arc.labelLength)
    const height = measureLabelHeight(arc.labelLines)
    graph.setEdge(arc.from, arc.to, { width, height, labelpos: 'c' }, arc.id)
  }
  layout(graph, { customOrder: (layered, order) => orderSiblings(layered, order, request.arcs) })
  return readLayout(request, graph)
}

// Every step stands as near to the first one as its arcs allow, so steps that follow the same step stand side by side. The rankers of
// the library keep arcs short instead, and move some of them away. The graph has no circles at this point.
function rankEarly(graph: Graph): void {
  const rank = (name: string): number => {
    const label = graph.node(name) as { rank?: number }
    if (label.rank !== undefined) return label.rank
    const before = (graph.inEdges(name) ?? []).map((edge) => rank(edge.v) + (graph.edge(edge) as { minlen: number }).minlen)
    label.rank = Math.max(0, ...before)
    return label.rank
  }
  for (const name of graph.nodes()) rank(name)
}

function readLayout(request: LayoutRequest, graph: Graph): Layout {
  const steps: Record<string, Point> = {}
  for (const step of request.steps) {
    const { x, y } = graph.node(step) as Point
    steps[step] = { x, y }
  }
  const arcs: Record<string, ArcPlace> = {}
  for (const arc of request.arcs) {
    const place = graph.edge(arc.from, arc.to, arc.id) as { points: Point[] } & Partial<Point>
    const label = arc.labelLength > 0 ? { x: place.x!, y: place.y! } : null
    arcs[arc.id] = { points: place.points, label }
  }
  const { width, height } = graph.graph() as { width: number; height: number }
  return { direction: request.direction, steps, arcs, width, height }
}

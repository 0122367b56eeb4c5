// What the layout needs to know of a graph. It does not depend on the state of the execution.
import type { GraphView } from '../api/types'
import { measureArcLabel } from './facts'
import type { Direction, LayoutRequest } from './layout'

export function makeLayoutRequest(graph: GraphView, direction: Direction): LayoutRequest {
  const steps = graph.steps.map((step) => step.name)
  const known = new Set(steps)
  const arcs = graph.arcs
    .filter((arc) => known.has(arc.from) && known.has(arc.to))
    .map((arc) => {
      const { length, lines } = measureArcLabel(arc)
      return { id: arc.id, from: arc.from, to: arc.to, labelLength: length, labelLines: lines }
    })
  return { steps, arcs, direction }
}

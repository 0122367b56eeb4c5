// The order of steps and of the ways of arcs side by side.
import type { Graph } from '@dagrejs/dagre'
import { groupBy } from './group'
import type { ArcRequest } from './layout'

type Order = (graph: Graph, options: { disableOptimalOrderHeuristic: boolean }) => void

// What the library notes of a node: of a step, or of a point on the way of an arc (`edgeObj`).
interface Place {
  rank: number
  order: number
  edgeObj?: { v: string; w: string; name: string }
}

// A place in its layer, with those before and after it that arcs lead to.
interface Neighbour {
  place: Place
  siblings: string | null
  before: Place[]
  after: Place[]
}

const MAX_PASSES = 12

// Steps that only one step leads to, and the ways to them, stay in the order of the document: a walk through it finds them so. Where ways
// meet, neighbours change places while that leaves fewer crossings.
export function orderSiblings(graph: Graph, order: Order, arcs: ArcRequest[]): void {
  order(graph, { disableOptimalOrderHeuristic: true })
  const siblings = groupSiblings(graph, arcs)
  const getPlaces = (names: string[] | undefined) => (names ?? []).map((name) => getPlace(graph, name))
  const neighbours = graph.nodes().map((name): Neighbour => {
    const before = getPlaces(graph.predecessors(name))
    const after = getPlaces(graph.successors(name))
    return { place: getPlace(graph, name), siblings: siblings.get(name) ?? null, before, after }
  })
  const layers = [...groupBy(neighbours, ({ place }) => place.rank).values()]
  for (const layer of layers) layer.sort((a, b) => a.place.order - b.place.order)
  for (let pass = 0; pass < MAX_PASSES; pass += 1) {
    const improved = layers.map(swapNeighbours)
    if (!improved.includes(true)) return
  }
}

function getPlace(graph: Graph, name: string): Place {
  return graph.node(name) as Place
}

// Places with the same value belong to targets of one step, and must not change places with each other.
function groupSiblings(graph: Graph, arcs: ArcRequest[]): Map<string, string> {
  const byTarget = groupBy(arcs, (arc) => arc.to)
  const own = arcs.filter((arc) => byTarget.get(arc.to)!.every((other) => other.from === arc.from))
  const sourceById = new Map(own.map((arc) => [arc.id, arc.from]))
  const siblings = new Map(own.map((arc) => [arc.to, arc.from]))
  for (const name of graph.nodes()) {
    const source = sourceById.get(getPlace(graph, name).edgeObj?.name ?? '')
    if (source !== undefined) siblings.set(name, source)
  }
  return siblings
}

function swapNeighbours(layer: Neighbour[]): boolean {
  let isImproved = false
  for (let n = 0; n + 1 < layer.length; n += 1) {
    const left = layer[n]!
    const right = layer[n + 1]!
    const areSiblings = left.siblings !== null && left.siblings === right.siblings
    if (areSiblings || countGain(left, right) <= 0) continue
    layer[n] = right
    layer[n + 1] = left
    right.place.order = n
    left.place.order = n + 1
    isImproved = true
  }
  return isImproved
}

// How many crossings fewer there are when two neighbours change places.
function countGain(left: Neighbour, right: Neighbour): number {
  return compareOrders(left.before, right.before) + compareOrders(left.after, right.after)
}

function compareOrders(left: Place[], right: Place[]): number {
  let gain = 0
  for (const a of left) for (const b of right) gain += Math.sign(a.order - b.order)
  return gain
}

import { describe, expect, it } from 'vitest'
import type { GraphView } from '../api/types'
import { layOutColumns } from './columns'
import { layOutGraph, measureLabel, measureLabelHeight, STEP_HEIGHT_PX, STEP_WIDTH_PX, type Direction, type Layout } from './layout'
import { measureRankLabels, traceArc } from './paths'
import { makeLayoutRequest } from './request'
import { makeGraph } from './samples'

interface Box {
  left: number
  top: number
  right: number
  bottom: number
}

function makeBox(middle: { x: number; y: number }, width: number, height: number): Box {
  return {
    left: middle.x - width / 2,
    top: middle.y - height / 2,
    right: middle.x + width / 2,
    bottom: middle.y + height / 2,
  }
}

function overlap(a: Box, b: Box): boolean {
  return a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom
}

function listOverlaps(graph: GraphView, layout: Layout): string[] {
  const request = makeLayoutRequest(graph, layout.direction)
  const steps = request.steps.map((name) => ({ name, box: makeBox(layout.steps[name]!, STEP_WIDTH_PX, STEP_HEIGHT_PX) }))
  const labels = request.arcs.flatMap((arc) => {
    const { label } = layout.arcs[arc.id]!
    return label === null ? [] : [{ name: arc.id, box: makeBox(label, measureLabel(arc.labelLength), measureLabelHeight(arc.labelLines)) }]
  })
  const things = [...steps, ...labels]
  return things.flatMap((a, n) => things.slice(n + 1).flatMap((b) => (overlap(a.box, b.box) ? [`${a.name} ${b.name}`] : [])))
}

// Points along a path of `M`, `L` and `C`.
function samplePath(path: string): { x: number; y: number }[] {
  const found: { x: number; y: number }[] = []
  for (const [, letter, text] of path.matchAll(/([MLC])([^MLC]+)/g)) {
    const [x1 = 0, y1 = 0, x2 = 0, y2 = 0, x3 = 0, y3 = 0] = text!.trim().split(/[ ,]+/).map(Number)
    const last = found.at(-1) ?? { x: x1, y: y1 }
    for (let n = 1; n <= 20; n += 1) {
      const t = n / 20
      const mix = (a: number, b: number, c: number, d: number) => a * (1 - t) ** 3 + 3 * b * t * (1 - t) ** 2 + 3 * c * t * t * (1 - t) + d * t ** 3
      if (letter === 'C') found.push({ x: mix(last.x, x1, x2, x3), y: mix(last.y, y1, y2, y3) })
      else found.push({ x: last.x + (x1 - last.x) * t, y: last.y + (y1 - last.y) * t })
    }
  }
  return found
}

// Arcs that run behind the label of another one.
function listHiddenArcs(graph: GraphView, layout: Layout): string[] {
  const ranks = measureRankLabels(graph.arcs, layout)
  const { arcs } = makeLayoutRequest(graph, layout.direction)
  return graph.arcs.flatMap((arc) => {
    const points = samplePath(traceArc(arc, layout, ranks))
    const others = arcs.filter(({ id }) => id !== arc.id && layout.arcs[id]!.label !== null)
    return others
      .filter(({ id, labelLength, labelLines }) => {
        const box = makeBox(layout.arcs[id]!.label!, measureLabel(labelLength) - 2, measureLabelHeight(labelLines) - 2)
        return points.some(({ x, y }) => x > box.left && x < box.right && y > box.top && y < box.bottom)
      })
      .map(({ id }) => `${arc.id} behind ${id}`)
  })
}

const SCORE = makeGraph([
  'plan -> score',
  'score -> report: {{ score.failed == 0 and score.ok > workload.minimum }}',
  'score -> repair: else',
  'repair -> approve: {{ repair.rows > 10 }}',
  'repair -> load: {{ repair.rows <= 10 }}',
  'repair -> score: {{ repair.again }}',
  'load -> notify: {{ load.failed }}',
  'report -> archive',
  'load -> archive: else',
])

describe.each<Direction>(['LR', 'TB'])('layout %s', (direction) => {
  const layout = layOutGraph(makeLayoutRequest(SCORE, direction))
  const along = direction === 'LR' ? 'x' : 'y'
  const across = direction === 'LR' ? 'y' : 'x'

  it('leaves room for every step and every label', () => {
    expect(listOverlaps(SCORE, layout)).toEqual([])
  })

  it('leads no arc behind the label of another one', () => {
    const wide = makeGraph(['a -> b: amount > 1000 and country', 'a -> c: else', 'a -> d', 'b -> e', 'c -> e: x', 'd -> e'])
    for (const graph of [SCORE, wide]) expect(listHiddenArcs(graph, layOutGraph(makeLayoutRequest(graph, direction)))).toEqual([])
  })

  it('leads onward', () => {
    expect(layout.steps.plan![along]).toBeLessThan(layout.steps.score![along])
    expect(layout.steps.score![along]).toBeLessThan(layout.steps.repair![along])
  })

  it('puts steps that follow the same step side by side, in the order of the document', () => {
    expect(layout.steps.report![along]).toBe(layout.steps.repair![along])
    expect(layout.steps.report![across]).toBeLessThan(layout.steps.repair![across])
    expect(layout.steps.approve![across]).toBeLessThan(layout.steps.load![across])
  })

  it('puts a step where several ways meet where they do not cross', () => {
    expect(layout.steps.archive![across]).toBeLessThan(layout.steps.notify![across])
    expect(layout.arcs['load:1']!.label![across]).toBeLessThan(layout.arcs['load:0']!.label![across])
  })

  it('keeps labels in the order of the steps they lead to', () => {
    const fan = makeGraph(['a -> b: x == 1', 'a -> c: x == 2', 'a -> d: x == 3', 'a -> e: else'])
    const places = layOutGraph(makeLayoutRequest(fan, direction))
    const labels = fan.arcs.map((arc) => places.arcs[arc.id]!.label![across])
    expect(labels).toEqual([...labels].sort((a, b) => a - b))
  })
})

describe('layout', () => {
  it('knows steps with the same targets in another order', () => {
    const graph = makeGraph(['a -> b', 'a -> c', 'b -> x: 1', 'b -> y: 2', 'c -> y: 1', 'c -> x: 2'])
    const layout = layOutGraph(makeLayoutRequest(graph, 'LR'))
    expect(Object.keys(layout.steps)).toEqual(['a', 'b', 'c', 'x', 'y'])
    expect(listOverlaps(graph, layout)).toEqual([])
  })

  it('takes arcs to the own step, two arcs to one step and steps without arcs', () => {
    const graph = makeGraph(['a -> a: again', 'a -> b: x', 'a -> b: y'])
    graph.steps.push({ ...graph.steps[0]!, name: 'alone', entry: false })
    const layout = layOutGraph(makeLayoutRequest(graph, 'LR'))
    expect(Object.keys(layout.arcs)).toEqual(['a:0', 'a:1', 'a:2'])
    expect(layout.steps.alone).toBeDefined()
    for (const arc of graph.arcs) expect(traceArc(arc, layout, measureRankLabels(graph.arcs, layout))).toMatch(/^M[-\d. CLMQ]+$/)
  })

  it('leaves out arcs to steps that are not in the graph', () => {
    const graph = makeGraph(['a -> b'])
    graph.arcs.push({ id: 'b:0', from: 'b', to: 'end', when: null, line: 9, else: false })
    expect(makeLayoutRequest(graph, 'LR').arcs.map((arc) => arc.id)).toEqual(['a:0'])
  })

  it('does not depend on the state of the execution', () => {
    expect(makeLayoutRequest(SCORE, 'LR').arcs.map((arc) => arc.labelLength)).toEqual([0, 19, 9, 11, 11, 17, 16, 0, 9])
  })
})

describe('columns', () => {
  it('are the depths of the steps', () => {
    const layout = layOutColumns(makeLayoutRequest(SCORE, 'LR'))
    const columns = ['plan', 'score', 'repair', 'load', 'notify'].map((name) => layout.steps[name]!.x)
    expect(columns).toEqual([...columns].sort((a, b) => a - b))
    expect(new Set(columns).size).toBe(5)
    expect(layout.steps.report!.x).toBe(layout.steps.repair!.x)
    expect(listOverlaps(SCORE, layout)).toEqual([])
  })

  it('take circles that nothing leads to', () => {
    const layout = layOutColumns(makeLayoutRequest(makeGraph(['a -> b', 'b -> a']), 'TB'))
    expect(layout.steps.a!.y).toBeLessThan(layout.steps.b!.y)
  })
})

import { describe, expect, it } from 'vitest'
import type { GraphView } from '../api/types'
import { layOutColumns } from './columns'
import { LABEL_HEIGHT_PX, layOutGraph, measureLabel, STEP_HEIGHT_PX, STEP_WIDTH_PX, type Direction, type Layout } from './layout'
import { traceArc } from './paths'
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
    return label === null ? [] : [{ name: arc.id, box: makeBox(label, measureLabel(arc.labelLength), LABEL_HEIGHT_PX) }]
  })
  const things = [...steps, ...labels]
  return things.flatMap((a, n) => things.slice(n + 1).flatMap((b) => (overlap(a.box, b.box) ? [`${a.name} ${b.name}`] : [])))
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
    for (const arc of graph.arcs) expect(traceArc(arc, layout)).toMatch(/^M[-\d. CLMQ]+$/)
  })

  it('leaves out arcs to steps that are not in the graph', () => {
    const graph = makeGraph(['a -> b'])
    graph.arcs.push({ id: 'b:0', from: 'b', to: 'end', when: null, line: 9, else: false })
    expect(makeLayoutRequest(graph, 'LR').arcs.map((arc) => arc.id)).toEqual(['a:0'])
  })

  it('does not depend on the state of the execution', () => {
    expect(makeLayoutRequest(SCORE, 'LR').arcs.map((arc) => arc.labelLength)).toEqual([0, 30, 10, 22, 23, 18, 17, 0, 10])
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

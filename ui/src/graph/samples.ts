// Data for tests: graphs and states in the shape of the server's answers.
import type { GraphArcView, GraphView, LoopCountsView, PageArcView, PageStepView } from '../api/types'

// A graph from lines such as `plan -> score` and `score -> report: failed == 0`.
export function makeGraph(lines: string[]): GraphView {
  const names: string[] = []
  const arcs: GraphArcView[] = []
  for (const line of lines) {
    const [, from, to, , when] = /^(\S+) -> (\w+)(: (.+))?$/.exec(line)!
    for (const name of [from!, to!]) if (!names.includes(name)) names.push(name)
    const number = arcs.filter((arc) => arc.from === from).length
    const isElse = when === 'else'
    const condition = isElse ? null : (when ?? null)
    arcs.push({ id: `${from}:${number}`, from: from!, to: to!, when: condition, line: arcs.length + 1, else: isElse })
  }
  const steps = names.map((name, n) => ({ name, kinds: ['python'], loop: false, line: n + 1, final: false, entry: n === 0 }))
  return { hash: 'hash', path: 'etl/score', steps, arcs, skips: [] }
}

export function makeStep(status: string, more: Partial<PageStepView> = {}): PageStepView {
  return {
    status,
    runs: 1,
    entered_at: null,
    ended_at: null,
    first_seq: null,
    last_seq: null,
    seconds: null,
    loop: null,
    waits: null,
    error: null,
    ...more,
  }
}

export function makeLoop(more: Partial<LoopCountsView>): LoopCountsView {
  return { total: 100, done: 0, ok: 0, failed: 0, skipped: 0, left: 0, running: 0, rate: null, seconds_left: null, ...more }
}

export function makeArc(more: Partial<PageArcView>): PageArcView {
  return { taken: 0, false: 0, error: 0, untried: 0, last: null, ...more }
}

// What the graph says of a step and of an arc, from the state of the execution. Pure.
import type { GraphArcView, GraphStepView, GraphView, LoopCountsView, PageArcView, PageStepView } from '../api/types'
import { formatCount, formatDuration, formatNoun, formatPercent, formatRate } from '../parts/format'
import { getLook, type Look } from '../parts/tone'

export interface Meter {
  okShare: number
  failedShare: number
  skippedShare: number
}

export interface StepFacts {
  look: Look
  // The second line: word of the status and kinds.
  kinds: string
  // The third line: how long, how many, how many are left.
  detail: string
  meter: Meter | null
  isReached: boolean
}

export type ArcState = 'taken' | 'false' | 'error' | 'untried'

export interface ArcFacts {
  state: ArcState
  label: string
  // The verdict with its count, as short as a label allows.
  mark: string
  note: string[]
}

export const MAX_LABEL_CHARACTERS = 32
// A longer label has two lines: wide labels push the steps apart, until all of it is too small to read.
export const MAX_LABEL_LINE_CHARACTERS = 15
// Room for a verdict behind the condition, so that the layout does not depend on the state.
export const MARK_CHARACTERS = 5
const MIN_ESTIMATED_ITEMS = 20
const MIN_ESTIMATED_SHARE = 0.05
const MAX_VALUE_CHARACTERS = 80

export function describeStep(step: GraphStepView, view: PageStepView | undefined): StepFacts {
  const look = getLook(view?.status ?? 'not_reached')
  const kinds = [...step.kinds, ...(step.loop ? ['loop'] : [])].join(', ')
  const loop = view?.loop ?? null
  return {
    look,
    kinds,
    detail: view === undefined ? '' : describeProgress(view),
    meter: loop === null ? null : measureLoop(loop),
    isReached: view !== undefined,
  }
}

function describeProgress(view: PageStepView): string {
  const runs = view.runs > 1 ? [`${formatCount(view.runs)} runs`] : []
  const wait = view.waits === null ? [] : [describeWait(view.waits.on, view.waits.name)]
  if (view.loop !== null) return [...describeLoop(view.loop, view.status), ...runs].join(' · ')
  const duration = view.seconds === null ? [] : [formatDuration(view.seconds * 1_000)]
  return [...wait, ...duration, ...runs].join(' · ')
}

const WAITED_FOR: Record<string, string> = {
  approval: 'an approval',
  signal: 'signal',
  child: 'a child',
  timer: 'a timer',
  retry: 'a retry',
  worker: 'a worker',
  place: 'a place',
}

function describeWait(on: string, name: string | null): string {
  const thing = WAITED_FOR[on] ?? on
  return name === null || on !== 'signal' ? `for ${thing}` : `for ${thing} ${name}`
}

function describeLoop(loop: LoopCountsView, status: string): string[] {
  const failed = loop.failed > 0 ? [`${formatCount(loop.failed)} ◆`] : []
  const left = loop.left > 0 ? [`${formatCount(loop.left)} left out`] : []
  if (status !== 'running') return [`${formatCount(loop.ok)} ok`, ...failed, ...left]
  const share = loop.total === null ? formatCount(loop.done) : formatPercent(loop.done, loop.total)
  const rate = loop.rate === null || loop.rate <= 0 ? [] : [formatRate(loop.rate)]
  const timeLeft = canEstimate(loop) ? [`${formatDuration(loop.seconds_left! * 1_000)} left`] : []
  return [share, ...failed, ...(timeLeft.length > 0 ? timeLeft : rate)]
}

// Time left is told once enough items have ended for their rate to mean something.
export function canEstimate(loop: LoopCountsView): boolean {
  if (loop.seconds_left === null || loop.total === null) return false
  return loop.done >= MIN_ESTIMATED_ITEMS && loop.done >= loop.total * MIN_ESTIMATED_SHARE
}

export function measureLoop(loop: LoopCountsView): Meter {
  const total = Math.max(loop.total ?? loop.done, 1)
  const share = (count: number) => Math.min(1, count / total)
  return { okShare: share(loop.ok), failedShare: share(loop.failed), skippedShare: share(loop.skipped) }
}

// All that is known of a step, for the pointer and for assistive technology.
export function noteStep(step: GraphStepView, view: PageStepView | undefined): string[] {
  const facts = describeStep(step, view)
  const lines = [`${step.name}: ${facts.look.word}`]
  if (facts.kinds !== '') lines.push(facts.kinds)
  if (facts.detail !== '') lines.push(facts.detail)
  const loop = view?.loop ?? null
  if (loop !== null && loop.total !== null) lines.push(`${formatCount(loop.done)} of ${formatNoun(loop.total, 'item')}`)
  if (loop !== null && loop.rate !== null && view?.status === 'running') lines.push(formatRate(loop.rate))
  if (view?.error) lines.push(`${view.error.code}: ${view.error.message}`)
  return lines
}

// An arc as it is drawn. `isSkip`: the way onward if an admission rule skips the step.
export interface DrawnArc extends GraphArcView {
  isSkip?: boolean
}

export interface DrawnGraph extends GraphView {
  arcs: DrawnArc[]
}

// The graph with the ways onward from steps that admission rules skip. They are drawn as arcs, and have verdicts like arcs.
export function addSkips(graph: GraphView): DrawnGraph {
  const skips = graph.skips.map(
    ({ from, to, rule, line, when }): DrawnArc => {
      return { id: `${from}:skip:${rule}`, from, to, when: when ?? null, line, else: false, isSkip: true }
    },
  )
  return { ...graph, arcs: [...graph.arcs, ...skips] }
}

export function labelArc(arc: DrawnArc): string {
  if (arc.else) return 'else'
  if (arc.when === null) return arc.isSkip ? 'skip' : ''
  const line = arc.when.replaceAll(/\s+/g, ' ').trim()
  const bare = line.replace(/^\{\{\s*/, '').replace(/\s*\}\}$/, '')
  const whole = arc.isSkip ? `skip if ${bare}` : bare
  return whole.length <= MAX_LABEL_CHARACTERS ? whole : `${whole.slice(0, MAX_LABEL_CHARACTERS - 1)}…`
}

export function describeArc(arc: DrawnArc, view: PageArcView | undefined): ArcFacts {
  const state = findArcState(view)
  const note = [`${arc.from} → ${arc.to}${arc.line === null ? '' : `, line ${arc.line}`}`]
  if (arc.isSkip) note.push(`if its admission rule skips ${arc.from}`)
  note.push(arc.else ? 'else' : (arc.when ?? 'always'))
  if (view !== undefined) note.push(...noteVerdict(view))
  return { state, label: labelArc(arc), mark: markArc(state, view), note }
}

const CONNECTIVE = /^ (and|or) /

// The label in one or two lines. It is divided before `and` or `or`, else at the space nearest to its middle.
export function splitLabel(label: string): string[] {
  if (label.length <= MAX_LABEL_LINE_CHARACTERS) return label === '' ? [] : [label]
  const middle = label.length / 2
  const spaces = [...label.matchAll(/ /g)].map((match) => match.index)
  const byDistance = spaces.toSorted((a, b) => Math.abs(a - middle) - Math.abs(b - middle))
  const nearest = byDistance.find((space) => CONNECTIVE.test(label.slice(space))) ?? byDistance[0]
  return nearest === undefined ? [label] : [label.slice(0, nearest), label.slice(nearest + 1)]
}

export function writeLabel(facts: ArcFacts): string[] {
  const lines = splitLabel(facts.label)
  if (facts.mark === '') return lines
  return [...lines.slice(0, -1), `${lines.at(-1) ?? ''} ${facts.mark}`]
}

// The room of a label, in characters and lines. A verdict has room behind its last line.
export function measureArcLabel(arc: DrawnArc): { length: number; lines: number } {
  const lines = splitLabel(labelArc(arc))
  if (lines.length === 0) return { length: 0, lines: 0 }
  const lengths = lines.map((line, n) => (n === lines.length - 1 ? line.length + MARK_CHARACTERS : line.length))
  return { length: Math.max(...lengths), lines: lines.length }
}

function findArcState(view: PageArcView | undefined): ArcState {
  if (view === undefined) return 'untried'
  if (view.taken > 0) return 'taken'
  if (view.error > 0) return 'error'
  return view.false > 0 ? 'false' : 'untried'
}

const MARKS: Record<ArcState, string> = { taken: '✓', false: '×', error: '!', untried: '' }

function markArc(state: ArcState, view: PageArcView | undefined): string {
  if (view === undefined || state === 'untried') return ''
  const count = view[state]
  const shown = count > 99 ? '99+' : String(count)
  return count > 1 ? `${MARKS[state]}${shown}` : MARKS[state]
}

function noteVerdict(view: PageArcView): string[] {
  const counts = (['taken', 'false', 'error'] as const)
    .filter((state) => view[state] > 0)
    .map((state) => (view[state] === 1 ? state : `${state} ${formatCount(view[state])} times`))
  const lines = [counts.length === 0 ? 'not tried' : counts.join(', ')]
  for (const [name, value] of Object.entries(view.last?.saw ?? {})) lines.push(`${name} = ${formatValue(value)}`)
  return lines
}

function formatValue(value: unknown): string {
  const text = JSON.stringify(value) ?? 'undefined'
  return text.length <= MAX_VALUE_CHARACTERS ? text : `${text.slice(0, MAX_VALUE_CHARACTERS - 1)}…`
}

// What the picture of the graph is called for those who do not see it.
export function describeGraph(graph: GraphView, steps: Record<string, PageStepView>): string {
  const counts = new Map<string, number>()
  for (const step of graph.steps) {
    const { word } = getLook(steps[step.name]?.status ?? 'not_reached')
    counts.set(word, (counts.get(word) ?? 0) + 1)
  }
  const states = [...counts].map(([word, count]) => `${formatCount(count)} ${word}`).join(', ')
  return `Graph of ${formatNoun(graph.steps.length, 'step')}: ${states}. The list of steps says the same.`
}

// The step that a reader wants to see first: one that failed, else one that runs or waits, else the first.
export function findFocus(graph: GraphView, steps: Record<string, PageStepView>): string | null {
  for (const status of ['failed', 'running', 'waiting']) {
    const found = graph.steps.find((step) => steps[step.name]?.status === status)
    if (found !== undefined) return found.name
  }
  const entry = graph.steps.find((step) => step.entry) ?? graph.steps[0]
  return entry?.name ?? null
}

import type { MarkView, PageView } from '../api/types'
import type { RawSearch } from '../parts/search'
import { readMoment, readNumber, readText } from '../parts/search'

// The selection and the time of the execution page: address ↔ selection, and where the time keys lead. Pure.

export const TABS = ['items', 'data', 'vars', 'logs', 'attempts', 'spark', 'lineage', 'playbook'] as const
export type Tab = (typeof TABS)[number]

export interface ExecutionSearch {
  step?: string | undefined
  run?: number | undefined
  item?: number | undefined
  tab?: Tab | undefined
  // Numbers of events in the execution, as the list of events and `noetl exec at` count them.
  at?: number | undefined
  event?: number | undefined
  from?: string | undefined
  to?: string | undefined
  // The items of one command of a loop: where they begin, and how many they are.
  first?: number | undefined
  count?: number | undefined
  line?: number | undefined
  group?: string | undefined
  text?: string | undefined
  only?: string | undefined
}

export function readExecutionSearch(raw: RawSearch): ExecutionSearch {
  const tab = readText(raw.tab)
  return {
    step: readText(raw.step),
    run: readNumber(raw.run),
    item: readNumber(raw.item),
    tab: TABS.find((known) => known === tab),
    at: readNumber(raw.at),
    event: readNumber(raw.event),
    from: readMoment(raw.from),
    to: readMoment(raw.to),
    first: readNumber(raw.first),
    count: readNumber(raw.count),
    line: readNumber(raw.line),
    group: readText(raw.group),
    text: readText(raw.text),
    only: readText(raw.only),
  }
}

export interface Selection {
  step: string | null
  run: number | null
  item: number | null
}

// What is selected: the address decides; else the failure, what runs, what waits, or what made the result.
export function chooseSelection(search: ExecutionSearch, view: PageView): Selection {
  if (search.step !== undefined) {
    return { step: search.step, run: search.run ?? null, item: search.item ?? null }
  }
  const { failure } = view
  if (failure?.step && failure.execution_id === view.execution_id) {
    return { step: failure.step, run: failure.run, item: failure.item }
  }
  return { step: findNotableStep(view), run: null, item: null }
}

function findNotableStep(view: PageView): string | null {
  const names = Object.keys(view.steps)
  for (const status of ['failed', 'running', 'waiting']) {
    const found = names.find((name) => view.steps[name]?.status === status)
    if (found !== undefined) return found
  }
  return view.result_step ?? names.at(-1) ?? null
}

// Another step: what belonged to the step before is forgotten.
export function selectStep(search: ExecutionSearch, step: string): ExecutionSearch {
  return { ...search, step, run: undefined, item: undefined, first: undefined, count: undefined, line: undefined }
}

// A command of a loop, as the timeline and the attempts name it.
export interface CommandItems {
  first: number
  count: number
}

// The items that the address limits the list to; null for all of them.
export function readCommandItems({ first, count }: ExecutionSearch): CommandItems | null {
  return first === undefined || count === undefined || count < 1 ? null : { first, count }
}

// The items of a command, in the tab that lists them.
export function showCommandItems(search: ExecutionSearch, step: string, run: number | null, items: CommandItems): ExecutionSearch {
  const { first, count } = items
  return { ...selectStep(search, step), run: run ?? undefined, tab: 'items', first, count }
}

// The events that the keys `[` and `]` stop at, ascending: marks, beginnings and ends of steps, arcs of the selected step.
export function listLandmarks(view: PageView, marks: readonly MarkView[], step: string | null): number[] {
  const seqs = new Set<number>()
  for (const mark of marks) seqs.add(mark.seq)
  for (const each of Object.values(view.steps)) {
    if (each.first_seq !== null) seqs.add(each.first_seq)
    if (each.last_seq !== null) seqs.add(each.last_seq)
  }
  for (const [id, arc] of Object.entries(view.arcs)) {
    const isOfStep = step !== null && id.startsWith(`${step}:`)
    if (isOfStep && arc.last !== null) seqs.add(arc.last.seq)
  }
  if (view.failure?.seq != null) seqs.add(view.failure.seq)
  return [...seqs].sort((a, b) => a - b)
}

// The landmark before or after an event, or null if there is none.
export function findLandmark(landmarks: readonly number[], seq: number, direction: -1 | 1): number | null {
  if (direction === 1) return landmarks.find((each) => each > seq) ?? null
  return landmarks.findLast((each) => each < seq) ?? null
}

// The failures that `f` goes through: seqs of the first of each kind, ascending, after the one shown; then from the start.
export function findNextFailure(seqs: readonly number[], seq: number | null): number | null {
  const sorted = [...seqs].sort((a, b) => a - b)
  const next = seq === null ? undefined : sorted.find((each) => each > seq)
  return next ?? sorted[0] ?? null
}

// The number of the event beside another one, within the log; null: it is the last one, which is shown as live.
export function findNextNumber(number: number, direction: -1 | 1, events: number): number | null {
  const next = Math.max(1, number + direction)
  return next >= events ? null : next
}

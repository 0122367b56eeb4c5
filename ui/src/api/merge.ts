import type { BandChange, BandCounter, Delta } from './messages'
import type { BandView, ExecutionsView, ListedExecutionView, PageView, TimelineView } from './types'

// How what streams bring is merged into what the cache has. Pure: nothing that did not change gets a new identity.

const COUNTERS: readonly BandCounter[] = ['started', 'ended', 'items', 'failed', 'retried', 'busy_us', 'slowest_us']

// The view after the delta; the same view if it has a later state. Two deltas may have one `seq`: what waits for a worker
// changes without an event.
export function mergeDelta(view: PageView, delta: Delta): PageView {
  if (delta.seq < view.seq) return view
  const { bands: _bands, logs_part: _part, ...changes } = delta
  return {
    ...view,
    ...changes,
    at: delta.updated_at ?? view.at,
    last_seq: Math.max(view.last_seq, delta.seq),
    steps: { ...view.steps, ...delta.steps },
    arcs: { ...view.arcs, ...delta.arcs },
  }
}

// Whether another thing waits for a person than before.
export function waitsOtherwise(before: PageView | undefined, after: PageView | undefined): boolean {
  return describeWaits(before) !== describeWaits(after)
}

function describeWaits(view: PageView | undefined): string {
  if (view === undefined) return ''
  const waits = Object.entries(view.steps).filter(([, step]) => step.waits?.on === 'approval' || step.waits?.on === 'signal')
  return JSON.stringify([view.status, waits.map(([name, step]) => [name, step.waits?.on, step.waits?.since])])
}

// The timeline after changed buckets, or null if it must be read again: a step is new, or its buckets became wider.
export function mergeBands(timeline: TimelineView, bands: Record<string, BandChange>): TimelineView | null {
  const steps = { ...timeline.steps }
  for (const [name, change] of Object.entries(bands)) {
    const band = steps[name]
    if (band === undefined) return null
    if (band.width_us !== change.width_us || band.start !== change.start) return null
    steps[name] = mergeBand(band, change)
  }
  return { ...timeline, steps }
}

function mergeBand(band: BandView, change: BandChange): BandView {
  const merged = { ...band }
  for (const counter of COUNTERS) {
    const fresh = change[counter]
    if (fresh !== undefined) merged[counter] = replaceFrom(band[counter], change.from, fresh)
  }
  return merged
}

function replaceFrom(values: number[], from: number, fresh: number[]): number[] {
  const padding = Math.max(0, from - values.length)
  const before = [...values.slice(0, from), ...new Array<number>(padding).fill(0)]
  return [...before, ...fresh, ...values.slice(from + fresh.length)]
}

// Ids are numbers of different length, as text.
export function compareIds(a: string, b: string): number {
  if (a.length !== b.length) return a.length - b.length
  return a < b ? -1 : a > b ? 1 : 0
}

export interface RowRules {
  statuses: readonly string[]
  isFirstPage: boolean
  maxRows: number
}

// The list after one changed row: changed in its place, added in front, or taken out when its status is not wanted.
export function mergeRow(list: ExecutionsView, row: ListedExecutionView, rules: RowRules): ExecutionsView {
  const isWanted = rules.statuses.length === 0 || rules.statuses.includes(row.status)
  const index = list.executions.findIndex((known) => known.execution_id === row.execution_id)
  const known = list.executions[index]
  if (known !== undefined) {
    if (known.last_seq > row.last_seq) return list
    if (!isWanted) return removeRow(list, row.execution_id)
    const executions = [...list.executions]
    executions[index] = { ...known, ...row }
    return { ...list, executions }
  }
  if (!isWanted || !rules.isFirstPage) return list
  const last = list.executions.at(-1)
  const isOlder = last !== undefined && compareIds(row.execution_id, last.execution_id) < 0
  if (isOlder) return list
  const executions = [row, ...list.executions].sort((a, b) => compareIds(b.execution_id, a.execution_id))
  return { ...list, executions: executions.slice(0, rules.maxRows) }
}

export function removeRow(list: ExecutionsView, id: string): ExecutionsView {
  const executions = list.executions.filter((row) => row.execution_id !== id)
  return executions.length === list.executions.length ? list : { ...list, executions }
}

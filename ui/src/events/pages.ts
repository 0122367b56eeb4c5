import type { ToldEventView, ToldEventsView } from '../api/types'

// How pages of the log are asked for from a place in its middle, in both directions. Pure.

export type Place = { before: number } | { after: number }

// Some consecutive events that match the filter, and where what lies above and below them is asked for.
export interface EventPage {
  events: ToldEventView[]
  // The `before` of the page above; null: the log begins here.
  above: number | null
  // The `after` of the page below. Everything up to it has been looked at.
  below: number
  lookedAt: number | null
}

// The first page ends with the anchor, or with the newest event.
export function makeFirstPlace(anchor: number | null, lastSeq: number): Place {
  return { before: (anchor ?? lastSeq) + 1 }
}

// What the answer of the server says of its place. `lastSeq`: the end of the log when it was asked.
export function makePage(answer: ToldEventsView, place: Place, lastSeq: number): EventPage {
  const { events, next, looked_at: lookedAt } = answer
  if ('after' in place) {
    const end = Math.max(lastSeq, place.after, events.at(-1)?.seq ?? 0)
    return { events, above: place.after + 1, below: next ?? end, lookedAt }
  }
  const isBeginning = next === null || events[0]?.number === 1
  return { events, above: isBeginning ? null : next, below: place.before - 1, lookedAt }
}

// The page above the first one, or undefined at the beginning of the log.
export function findPlaceBefore(pages: readonly EventPage[]): Place | undefined {
  const above = pages[0]?.above ?? null
  return above === null ? undefined : { before: above }
}

// The page below the last one. Undefined: the log has no more, as far as is known.
export function findPlaceAfter(pages: readonly EventPage[], lastSeq: number): Place | undefined {
  const below = pages.at(-1)?.below
  return below !== undefined && below < lastSeq ? { after: below } : undefined
}

// Joins small neighbours: a live log grows by a few events at a time, and only so many pages are kept.
export function joinPages(pages: readonly EventPage[], maxRows: number): EventPage[] {
  const joined: EventPage[] = []
  for (const page of pages) {
    const last = joined.at(-1)
    const isSmall = last !== undefined && last.events.length + page.events.length <= maxRows
    if (!isSmall) {
      joined.push(page)
      continue
    }
    const events = [...last.events, ...page.events]
    joined[joined.length - 1] = { events, above: last.above, below: page.below, lookedAt: page.lookedAt }
  }
  return joined
}

export function listRows(pages: readonly EventPage[]): ToldEventView[] {
  return pages.flatMap((page) => page.events)
}

// The row of the event, or of the last one before it; -1 if it is not among these rows.
export function findRow(rows: readonly ToldEventView[], seq: number): number {
  return isOutside(rows, seq) ? -1 : rows.findLastIndex((row) => row.seq <= seq)
}

// The event lies before the first or after the last of these rows.
export function isOutside(rows: readonly ToldEventView[], seq: number): boolean {
  const first = rows[0]
  const last = rows.at(-1)
  if (first === undefined || last === undefined) return false
  return seq < first.seq || seq > last.seq
}

const FAILURES = new Set(['command.failed', 'command.dead', 'call.error', 'playbook.failed', 'execution.quarantined'])

export function isFailure(event: ToldEventView): boolean {
  return FAILURES.has(event.type)
}

export function readStep(event: ToldEventView): string {
  const step = event.data.step
  return typeof step === 'string' ? step : ''
}

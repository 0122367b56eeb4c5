import type { ListFilter } from '../api/queries'
import { joinCommand } from '../parts/cli'
import type { RawSearch } from '../parts/search'
import { readText } from '../parts/search'

// The filter of the list: address ↔ what is asked of the server ↔ the command of the CLI. Pure.

export interface ListSearch {
  status?: string | undefined
  path?: string | undefined
  since?: string | undefined
  until?: string | undefined
  q?: string | undefined
  roots?: string | undefined
  parent?: string | undefined
  before?: string | undefined
}

// A pseudo status: live executions that wait for a person.
export const WAITING = 'waiting'

export function readListSearch(raw: RawSearch): ListSearch {
  return {
    status: readText(raw.status),
    path: readText(raw.path),
    since: readText(raw.since),
    until: readText(raw.until),
    q: readText(raw.q),
    roots: raw.roots === 'true' || raw.roots === true ? 'true' : undefined,
    parent: readText(raw.parent),
    before: readText(raw.before),
  }
}

export function listStatuses(search: ListSearch): string[] {
  return search.status?.split(',').filter((status) => status !== '') ?? []
}

// Adds the status, or takes it out. `waiting` stands alone: it is another question to the server.
export function toggleStatus(search: ListSearch, status: string): ListSearch {
  const chosen = listStatuses(search)
  const isChosen = chosen.includes(status)
  const others = chosen.filter((each) => each !== status && each !== WAITING)
  const next = status === WAITING ? [WAITING] : [...others, status]
  const statuses = isChosen ? others : next
  return { ...search, status: statuses.join(',') || undefined, before: undefined }
}

export function makeListFilter(search: ListSearch): ListFilter {
  const isWaiting = listStatuses(search).includes(WAITING)
  return {
    status: isWaiting ? undefined : search.status,
    waiting: isWaiting || undefined,
    path: search.path,
    since: search.since,
    until: search.until,
    q: search.q,
    roots: search.roots === 'true' || undefined,
    parent: search.parent,
    before: search.before,
  }
}

export function hasFilter(search: ListSearch): boolean {
  return Object.values(search).some((value) => value !== undefined)
}

export function makeListCommand(search: ListSearch): string {
  const { status, waiting, path, since, until, q, parent, before } = makeListFilter(search)
  const option = (name: string, value: string | undefined) => (value === undefined ? [] : [name, value])
  return joinCommand(
    'noetl',
    'exec',
    'list',
    waiting === true && '--waiting',
    ...option('--status', status),
    ...option('--path', path),
    ...option('--since', since),
    ...option('--until', until),
    ...option('--search', q),
    ...option('--parent', parent),
    ...option('--before', before),
  )
}

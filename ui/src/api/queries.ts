import { keepPreviousData, queryOptions } from '@tanstack/react-query'
import type { ChosenItems } from './actions'
import { get, post } from './call'
import type { LogFilter } from './lines'
import { fetchLogLines } from './lines'
import type {
  CountsView,
  ExecutionsView,
  ExplanationView,
  GraphView,
  ItemsPageView,
  ItemTimesView,
  PageView,
  PlaybookView,
  QueueView,
  ReferenceView,
  RepeatView,
  ResultView,
  RunsView,
  SessionView,
  StepDataView,
  TimelineView,
  ToldEventsView,
  TraceView,
} from './types'

// The questions that the pages ask, each with its key in the query cache. Hooks use them, and streams write into them.

const FOREVER = Number.POSITIVE_INFINITY
const LIVE_STALE_MS = 2000
const PROGRESS_MS = 1000
const WAITING_MS = 15_000
const execution = (id: string) => `/api/executions/${encodeURIComponent(id)}`
const step = (id: string, name: string) => `${execution(id)}/steps/${encodeURIComponent(name)}`

export interface ListFilter {
  status?: string | undefined
  path?: string | undefined
  since?: string | undefined
  until?: string | undefined
  q?: string | undefined
  roots?: boolean | undefined
  parent?: string | undefined
  waiting?: boolean | undefined
  before?: string | undefined
}

export const LIST_PAGE_ROWS = 50
export const MAX_WAITING_ROWS = 20

export const askSession = () =>
  queryOptions({ queryKey: ['session'], queryFn: ({ signal }) => get<SessionView>('/api/session', {}, signal), staleTime: FOREVER })

export const askExecutions = (filter: ListFilter) =>
  queryOptions({
    queryKey: ['executions', filter],
    queryFn: ({ signal }) => get<ExecutionsView>('/api/executions', { ...filter, limit: LIST_PAGE_ROWS }, signal),
    placeholderData: keepPreviousData,
  })

export const askWaiting = () =>
  queryOptions({
    queryKey: ['waiting'],
    queryFn: ({ signal }) =>
      get<ExecutionsView>('/api/executions', { waiting: true, limit: MAX_WAITING_ROWS }, signal),
    // Streams tell of the executions on the screen. Of others somebody else may take care meanwhile.
    refetchInterval: WAITING_MS,
  })

export const askCounts = (filter: Pick<ListFilter, 'path' | 'since' | 'until' | 'roots'>, buckets: number) =>
  queryOptions({
    queryKey: ['counts', filter, buckets],
    queryFn: ({ signal }) => get<CountsView>('/api/executions/counts', { ...filter, buckets }, signal),
    placeholderData: keepPreviousData,
  })

// `number`: the state after the event with this number; null: the newest, which the watch keeps fresh.
export const askView = (id: string, number: number | null) =>
  queryOptions<PageView>({
    queryKey: ['view', id, number],
    queryFn: ({ signal }) => get<PageView>(`${execution(id)}/view`, { number }, signal),
    placeholderData: (previous) => (previous?.execution_id === id ? previous : undefined),
    staleTime: number === null ? LIVE_STALE_MS : FOREVER,
  })

export const askGraph = (hash: string) =>
  queryOptions({
    queryKey: ['graph', hash],
    queryFn: ({ signal }) => get<GraphView>(`/api/catalog/hashes/${hash}/graph`, {}, signal),
    staleTime: FOREVER,
  })

export const askPlaybook = (hash: string) =>
  queryOptions({
    queryKey: ['playbook', hash],
    queryFn: ({ signal }) => get<PlaybookView>(`/api/catalog/hashes/${hash}`, {}, signal),
    staleTime: FOREVER,
  })

// Events have a number in their execution, which people see, and a `seq` in the log, which the server sorts by.
export const askEventSeq = (id: string, number: number) =>
  queryOptions({
    queryKey: ['event_seq', id, number],
    queryFn: async ({ signal }) => {
      const page = await get<ToldEventsView>(`${execution(id)}/events`, { number, limit: 1 }, signal)
      return page.events[0]?.seq ?? null
    },
    staleTime: FOREVER,
  })

export const askEventNumber = (id: string, seq: number) =>
  queryOptions({
    queryKey: ['event_number', id, seq],
    queryFn: async ({ signal }) => {
      const page = await get<ToldEventsView>(`${execution(id)}/events`, { after: seq - 1, limit: 1 }, signal)
      return page.events[0]?.number ?? null
    },
    staleTime: FOREVER,
  })

export interface TimeWindow {
  from?: string | undefined
  to?: string | undefined
}

export const askTimeline = (id: string, window: TimeWindow) =>
  queryOptions({
    queryKey: ['timeline', id, window],
    queryFn: ({ signal }) => get<TimelineView>(`${execution(id)}/timeline`, { ...window }, signal),
    placeholderData: keepPreviousData,
  })

export interface EventFilter {
  group?: string | undefined
  step?: string | undefined
  text?: string | undefined
}

export const EVENT_PAGE_ROWS = 100

export const fetchEvents = (id: string, filter: EventFilter, place: { after?: number; before?: number; limit?: number }) =>
  get<ToldEventsView>(`${execution(id)}/events`, { ...filter, limit: EVENT_PAGE_ROWS, ...place })

export const fetchViewAtSeq = (id: string, seq: number) => get<PageView>(`${execution(id)}/view`, { at: seq })

export const fetchViewAtMoment = (id: string, moment: string) => get<PageView>(`${execution(id)}/view`, { moment })

export const askExplanation = (id: string, name: string, at: number | null, run: number | null) =>
  queryOptions({
    queryKey: ['explain', id, name, at, run],
    queryFn: ({ signal }) =>
      get<ExplanationView>(`${execution(id)}/explain/${encodeURIComponent(name)}`, { at, run }, signal),
  })

export interface ItemFilter {
  run?: number | undefined
  status?: string | undefined
  after?: string | number | undefined
  q?: string | undefined
  first?: number | undefined
  count?: number | undefined
}

export const askItems = (id: string, name: string, filter: ItemFilter) =>
  queryOptions({
    queryKey: ['items', id, name, filter],
    queryFn: ({ signal }) => get<ItemsPageView>(`${step(id, name)}/items`, { ...filter, limit: 100 }, signal),
    placeholderData: keepPreviousData,
  })

// How long the items of a command took, which never changes.
export const askTimes = (id: string, name: string, run: number | null, first: number, count: number) =>
  queryOptions({
    queryKey: ['times', id, name, run, first, count],
    queryFn: ({ signal }) => get<ItemTimesView>(`${step(id, name)}/times`, { run, first, count }, signal),
    staleTime: FOREVER,
  })

export const askRuns = (id: string, name: string, before: number | null) =>
  queryOptions({
    queryKey: ['runs', id, name, before],
    queryFn: ({ signal }) => get<RunsView>(`${step(id, name)}/runs`, { before }, signal),
  })

export const askData = (id: string, name: string, run: number | null, item: number | null) =>
  queryOptions({
    queryKey: ['data', id, name, run, item],
    queryFn: ({ signal }) => get<StepDataView>(`${step(id, name)}/data`, { run, item }, signal),
  })

export const askReference = (id: string, refId: string, start: number, rows: number, sort?: string) =>
  queryOptions({
    queryKey: ['reference', id, refId, start, rows, sort],
    queryFn: ({ signal }) =>
      get<ReferenceView>(`${execution(id)}/references/${encodeURIComponent(refId)}`, { start, rows, sort }, signal),
    placeholderData: keepPreviousData,
    staleTime: FOREVER,
  })

export const askWorkload = (id: string) =>
  queryOptions({
    queryKey: ['workload', id],
    queryFn: ({ signal }) => get<Record<string, unknown>>(`${execution(id)}/workload`, {}, signal),
    staleTime: FOREVER,
  })

export const askTrace = (id: string, name: string, item: number | null) =>
  queryOptions({
    queryKey: ['trace', id, name, item],
    queryFn: ({ signal }) => get<TraceView>(`${execution(id)}/trace/${encodeURIComponent(name)}`, { limit: 100, item }, signal),
  })

export const askResult = (id: string, name: string) =>
  queryOptions({
    queryKey: ['result', id, name],
    queryFn: ({ signal }) => get<ResultView>(`${execution(id)}/result/${encodeURIComponent(name)}`, {}, signal),
  })

// Commands that have not ended, with how far their tools are. No event tells that, so it is asked for.
export const askCommands = (id: string) =>
  queryOptions({
    queryKey: ['commands', id],
    queryFn: ({ signal }) => get<QueueView>('/api/queue', { execution_id: id }, signal),
    refetchInterval: PROGRESS_MS,
  })

// What a retry would do: of everything that did not finish, or of chosen items only.
export const askRetry = (id: string, items: ChosenItems = {}) =>
  queryOptions({
    queryKey: ['retry', id, items],
    queryFn: () => post<RepeatView>(`${execution(id)}/retry/preview`, { items }),
    staleTime: 0,
  })

export const askLogs = (id: string, filter: LogFilter) =>
  queryOptions({
    queryKey: ['logs', id, filter],
    queryFn: ({ signal }) => fetchLogLines(id, filter, signal),
    placeholderData: keepPreviousData,
  })

import type { QueryClient } from '@tanstack/react-query'
import { useQuery, useQueryClient } from '@tanstack/react-query'
import { useNavigate, useParams, useSearch } from '@tanstack/react-router'
import { useCallback, useLayoutEffect, useMemo, useRef, useState } from 'react'
import { askEventNumber, askEventSeq, askGraph, askTimeline, askView, fetchViewAtMoment, fetchViewAtSeq } from '../api/queries'
import type { PageView } from '../api/types'
import { useWatch } from '../api/watch'
import { hasEnded } from '../parts/tone'
import type { ExecutionSearch } from './cursor'
import { chooseSelection, findLandmark, findNextFailure, findNextNumber, listLandmarks } from './cursor'
import type { EventPlace, PageState } from './page'

const PAGE = '/executions/$id'

export function usePageState() {
  const { id } = useParams({ from: PAGE })
  const search = useSearch({ from: PAGE })
  const navigate = useNavigate({ from: PAGE })
  const live = useQuery(askView(id, null))
  const past = useQuery({ ...askView(id, search.at ?? null), enabled: search.at !== undefined })
  const isAlive = live.data !== undefined && !hasEnded(live.data.status)
  useWatch(id, isAlive)
  const asked = search.at === undefined ? live : past
  const isOnItsWay = asked.isPlaceholderData
  const shownSearch = useShownSearch(search, isOnItsWay)
  const readSearch = useLatest(search)
  const view = asked.data ?? live.data
  const go = useCallback(
    (change: Partial<ExecutionSearch>, replace = false) =>
      void navigate({ search: (before: ExecutionSearch) => ({ ...before, ...change }), replace }),
    [navigate],
  )
  const showEvent = useShowEvent(id, go)
  // The same object while nothing that is shown has changed: the panes are then not drawn again.
  const state = useMemo((): PageState | null => {
    if (view === undefined || live.data === undefined) return null
    const selection = chooseSelection(shownSearch, live.data)
    return { id, view, live: live.data, search: shownSearch, readSearch, selection, showEvent, go }
  }, [id, view, live.data, shownSearch, readSearch, showEvent, go])
  const again = () => void asked.refetch()
  return { state, error: asked.error, again, isLoading: asked.isFetching && isOnItsWay }
}

// Puts the number of an event into the address. If only its place in the log is known, the server is asked for the number.
function useShowEvent(id: string, go: PageState['go']): PageState['showEvent'] {
  const client = useQueryClient()
  return useCallback(
    (event: EventPlace | null, change: Partial<ExecutionSearch> = {}) => {
      if (event === null) go({ ...change, event: undefined }, true)
      else void findNumber(client, id, event).then((number) => go({ ...change, event: number ?? undefined }, true))
    },
    [client, id, go],
  )
}

async function findNumber(client: QueryClient, id: string, { seq, number }: EventPlace): Promise<number | null> {
  const found = number ?? (await client.ensureQueryData(askEventNumber(id, seq)))
  if (found !== null) client.setQueryData(askEventSeq(id, found).queryKey, seq)
  return found
}

// The place in the log of the event that the address names.
export function useSelectedSeq({ id, search }: PageState): number | null {
  const { event } = search
  const { data } = useQuery({ ...askEventSeq(id, event ?? 0), enabled: event !== undefined, retry: false })
  return event === undefined ? null : (data ?? null)
}

// The address without the time that is on its way: what is drawn stays as it is until the state at that time is there.
function useShownSearch(search: ExecutionSearch, isOnItsWay: boolean): ExecutionSearch {
  const [shownAt, setShownAt] = useState(search.at)
  const at = isOnItsWay ? shownAt : search.at
  if (at !== shownAt) setShownAt(at)
  const key = JSON.stringify({ ...search, at })
  return useMemo(() => JSON.parse(key) as ExecutionSearch, [key])
}

// A function that stays the same and returns the last value.
function useLatest<Value>(value: Value): () => Value {
  const latest = useRef(value)
  useLayoutEffect(() => {
    latest.current = value
  })
  return useCallback(() => latest.current, [])
}

export function usePlaybookGraph(hash: string | null) {
  return useQuery({ ...askGraph(hash ?? ''), enabled: hash !== null })
}

export function useTimeline({ id }: PageState) {
  return useQuery(askTimeline(id, {}))
}

// The part of the time that the address names, closer than the whole has it. Null: the whole is exact already.
export function useTimelineDetail({ id, search }: PageState, isExact: boolean) {
  const { from, to } = search
  const isWanted = !isExact && from !== undefined && to !== undefined
  const { data } = useQuery({ ...askTimeline(id, { from, to }), enabled: isWanted })
  return isWanted ? (data ?? null) : null
}

export interface TimeCursor {
  // To the event with this number; null: back to live.
  toNumber: (number: number | null) => void
  toMoment: (iso: string) => void
  toLandmark: (direction: -1 | 1) => void
  toEvent: (direction: -1 | 1) => void
  toStart: () => void
  toNextFailure: () => void
}

// Moves the time cursor: to an event, a moment, a landmark, or back to live.
export function useTimeCursor(state: PageState): TimeCursor {
  const { id, view, live, readSearch, selection, showEvent, go } = state
  const { data: timeline } = useTimeline(state)
  const client = useQueryClient()
  // The landmark that was asked for last: keys are pressed faster than states come.
  const wantedSeq = useRef<number | null>(null)
  const toNumber = (number: number | null) => {
    wantedSeq.current = null
    go({ at: number === null || number >= live.events ? undefined : number }, true)
  }
  const toFound = (found: PageView) => {
    client.setQueryData(askView(id, found.number).queryKey, found)
    toNumber(found.number)
  }
  const toSeq = async (seq: number) => {
    wantedSeq.current = seq
    const found = await fetchViewAtSeq(id, seq)
    if (wantedSeq.current !== seq) return
    toFound(found)
    wantedSeq.current = seq
  }
  return {
    toNumber,
    toMoment: (iso) => void fetchViewAtMoment(id, iso).then(toFound),
    toLandmark: (direction) => {
      const landmarks = listLandmarks(live, timeline?.marks ?? [], selection.step)
      const shownSeq = readSearch().at === undefined ? live.seq : view.seq
      const found = findLandmark(landmarks, wantedSeq.current ?? shownSeq, direction)
      if (found !== null) void toSeq(found)
      else if (direction === 1) toNumber(null)
    },
    toEvent: (direction) => toNumber(findNextNumber(readSearch().at ?? live.events, direction, live.events)),
    toStart: () => toNumber(1),
    toNextFailure: () => {
      const kinds = view.failures.kinds
      const seqs = kinds.map((kind) => kind.first.seq).filter((each): each is number => each !== null)
      const shown = kinds.find((kind) => kind.step === selection.step && kind.first.item === selection.item)
      const next = findNextFailure(seqs, shown?.first.seq ?? null)
      const kind = kinds.find((each) => each.first.seq === next)
      if (kind === undefined || next === null) return
      showEvent({ seq: next }, { step: kind.step, item: kind.first.item ?? undefined, run: undefined })
    },
  }
}

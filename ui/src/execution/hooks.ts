import { useQuery } from '@tanstack/react-query'
import { useNavigate, useParams, useSearch } from '@tanstack/react-router'
import { useCallback, useLayoutEffect, useMemo, useRef, useState } from 'react'
import { askGraph, askTimeline, askView, fetchEvents, fetchViewAtMoment } from '../api/queries'
import { useWatch } from '../api/watch'
import { hasEnded } from '../parts/tone'
import type { ExecutionSearch } from './cursor'
import { chooseSelection, findLandmark, findNextFailure, listLandmarks, pickSeq } from './cursor'
import type { PageState } from './page'

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
  // The same object while nothing that is shown has changed: the panes are then not drawn again.
  const state = useMemo((): PageState | null => {
    if (view === undefined || live.data === undefined) return null
    const selection = chooseSelection(shownSearch, live.data)
    return { id, view, live: live.data, search: shownSearch, readSearch, selection, go }
  }, [id, view, live.data, shownSearch, readSearch, go])
  const again = () => void asked.refetch()
  return { state, error: asked.error, again, isLoading: asked.isFetching && isOnItsWay }
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
  toSeq: (seq: number | null) => void
  toMoment: (iso: string) => void
  toLandmark: (direction: -1 | 1) => void
  toEvent: (direction: -1 | 1) => void
  toStart: () => void
  toNextFailure: () => void
}

// Moves the time cursor: to an event, a moment, a landmark, or back to live.
export function useTimeCursor(state: PageState): TimeCursor {
  const { id, view, live, readSearch, selection, go } = state
  const { data: timeline } = useTimeline(state)
  const readSeq = () => readSearch().at ?? live.seq
  const toSeq = (at: number | null) => go({ at: at === null || at >= live.last_seq ? undefined : at }, true)
  return {
    toSeq,
    toMoment: (iso) => void fetchViewAtMoment(id, iso).then((found) => toSeq(found.seq)),
    toLandmark: (direction) => {
      const landmarks = listLandmarks(live, timeline?.marks ?? [], selection.step)
      const found = findLandmark(landmarks, readSeq(), direction)
      if (found !== null) toSeq(found)
      else if (direction === 1) toSeq(null)
    },
    toEvent: (direction) => {
      const place = direction === 1 ? { after: readSeq() } : { before: readSeq() }
      void fetchEvents(id, {}, { ...place, limit: 1 }).then((page) => {
        const found = pickSeq(page)
        if (found !== null) toSeq(found)
      })
    },
    toStart: () => void fetchEvents(id, {}, { after: 0, limit: 1 }).then((page) => toSeq(pickSeq(page))),
    toNextFailure: () => {
      const kinds = view.failures.kinds
      const seqs = kinds.map((kind) => kind.first.seq).filter((each): each is number => each !== null)
      const shown = kinds.find((kind) => kind.step === selection.step && kind.first.item === selection.item)
      const next = findNextFailure(seqs, shown?.first.seq ?? null)
      const kind = kinds.find((each) => each.first.seq === next)
      if (kind !== undefined) go({ step: kind.step, item: kind.first.item ?? undefined, run: undefined, event: next ?? undefined })
    },
  }
}

import type { InfiniteData } from '@tanstack/react-query'
import { keepPreviousData, useInfiniteQuery, useQueryClient } from '@tanstack/react-query'
import { useEffect, useMemo } from 'react'
import type { EventFilter } from '../api/queries'
import { EVENT_PAGE_ROWS, fetchEvents } from '../api/queries'
import type { EventPage, Place } from './pages'
import { findPlaceAfter, findPlaceBefore, joinPages, listRows, makeFirstPlace, makePage } from './pages'

const MAX_PAGES = 8

// Events around an anchor. More are read in both directions; pages far from the place that is shown are dropped.
export function useEvents(id: string, filter: EventFilter, anchor: number | null, lastSeq: number) {
  const key = ['events', id, filter, anchor]
  const query = useInfiniteQuery({
    queryKey: key,
    queryFn: async ({ pageParam }): Promise<EventPage> => {
      const place = pageParam ?? makeFirstPlace(anchor, lastSeq)
      return makePage(await fetchEvents(id, filter, place), place, lastSeq)
    },
    initialPageParam: null as Place | null,
    getPreviousPageParam: (_first, pages) => findPlaceBefore(pages),
    getNextPageParam: (_last, pages) => findPlaceAfter(pages, lastSeq),
    maxPages: MAX_PAGES,
    placeholderData: keepPreviousData,
    staleTime: Number.POSITIVE_INFINITY,
  })
  const pages = query.data?.pages
  useJoinedPages(key, query.isFetching || query.isPlaceholderData, pages)
  const rows = useMemo(() => listRows(pages ?? []), [pages])
  // Asked here and not of the query: the log may have grown since the last page was read.
  const hasMoreBelow = pages !== undefined && findPlaceAfter(pages, lastSeq) !== undefined
  return { ...query, rows, hasMoreBelow }
}

function useJoinedPages(key: unknown[], isBusy: boolean, pages: EventPage[] | undefined): void {
  const client = useQueryClient()
  useEffect(() => {
    if (isBusy || pages === undefined) return
    const joined = joinPages(pages, EVENT_PAGE_ROWS)
    if (joined.length === pages.length) return
    client.setQueryData<InfiniteData<EventPage, Place | null>>(key, (data) =>
      data?.pages === pages ? { pages: joined, pageParams: data.pageParams.slice(0, joined.length) } : data,
    )
  }, [client, isBusy, pages])
}

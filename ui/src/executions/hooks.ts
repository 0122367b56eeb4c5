import type { QueryClient } from '@tanstack/react-query'
import { useQueryClient } from '@tanstack/react-query'
import { useEffect } from 'react'
import { makeUrl } from '../api/call'
import type { ExecutionsView, ListedExecutionView } from '../api/types'
import { mergeRow, removeRow } from '../api/merge'
import type { ListFilter } from '../api/queries'
import { askExecutions, LIST_PAGE_ROWS } from '../api/queries'
import { openStream } from '../api/stream'
import { makeThrottle } from '../api/throttle'

// Counts, and what waits, are read again at most this often while rows change.
const REFRESH_MS = 3000

// Keeps the newest page of the list fresh while the tab is visible. Older pages do not change by themselves.
export function useLiveList(filter: ListFilter): void {
  const client = useQueryClient()
  const isFirstPage = filter.before === undefined
  const key = JSON.stringify(filter)
  useEffect(() => {
    if (!isFirstPage) return
    const refresh = makeThrottle(() => readAgain(client), REFRESH_MS)
    const close = openStream({
      client,
      makeUrl: () => makeUrl('/api/executions/stream', pickStreamFilter(filter)),
      on: {
        execution: (data) => {
          const row = data as ListedExecutionView
          if (isKnownRow(client, filter, row)) return
          applyRow(client, filter, row)
          // Counts, and what waits, may have changed also by a row that is not in this list.
          refresh.ask()
        },
        gone: (data) => {
          const { execution_id } = data as { execution_id: string }
          client.setQueryData<ExecutionsView>(askExecutions(filter).queryKey, (list) => list && removeRow(list, execution_id))
          refresh.ask()
        },
      },
    })
    return () => {
      close()
      refresh.finish()
    }
  }, [client, key, isFirstPage])
}

// The stream knows some of the filters only; what it cannot filter, `applyRow` leaves to the next reading.
function pickStreamFilter(filter: ListFilter) {
  const isSingle = filter.status !== undefined && !filter.status.includes(',')
  return { parent: filter.parent, path: filter.path, since: filter.since, status: isSingle ? filter.status : undefined, limit: LIST_PAGE_ROWS }
}

function findRow(client: QueryClient, filter: ListFilter, id: string): ListedExecutionView | undefined {
  const list = client.getQueryData<ExecutionsView>(askExecutions(filter).queryKey)
  return list?.executions.find((each) => each.execution_id === id)
}

// Whether the list has this state of the row, or a later one.
function isKnownRow(client: QueryClient, filter: ListFilter, row: ListedExecutionView): boolean {
  const known = findRow(client, filter, row.execution_id)
  return known !== undefined && known.last_seq >= row.last_seq
}

function applyRow(client: QueryClient, filter: ListFilter, row: ListedExecutionView): void {
  const key = askExecutions(filter).queryKey
  const list = client.getQueryData<ExecutionsView>(key)
  if (list === undefined) return
  const isOpenQuestion = filter.q !== undefined || filter.waiting === true || filter.until !== undefined || filter.roots === true
  if (isOpenQuestion && findRow(client, filter, row.execution_id) === undefined) return
  const statuses = filter.status?.split(',') ?? []
  const merged = mergeRow(list, row, { statuses, isFirstPage: filter.before === undefined, maxRows: LIST_PAGE_ROWS })
  if (merged !== list) client.setQueryData(key, merged)
}

function readAgain(client: QueryClient): void {
  for (const subject of ['counts', 'waiting', 'executions']) {
    void client.invalidateQueries({ queryKey: [subject] })
  }
}

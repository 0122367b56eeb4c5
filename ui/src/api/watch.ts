import type { QueryClient } from '@tanstack/react-query'
import { useQueryClient } from '@tanstack/react-query'
import { useEffect } from 'react'
import type { Delta, LogsPart } from './messages'
import type { PageView, TimelineView } from './types'
import { mergeBands, mergeDelta, waitsOtherwise } from './merge'
import { askTimeline, askView, askWaiting } from './queries'
import { openStream } from './stream'
import { makeThrottle } from './throttle'

// What follows from the log and is not in the deltas is read again at most this often.
const REFRESH_MS = 2000
const LOGS_REFRESH_MS = 1000
// The list of what waits has the rows of executions, which follow their events a little later.
const WAITING_REFRESH_MS = 700

// Keeps the newest view and timeline of an execution fresh, while it lives and the tab is visible.
export function useWatch(id: string, isLive: boolean): void {
  const client = useQueryClient()
  useEffect(() => {
    if (!isLive) return
    const refresh = makeThrottle(() => readAgain(client, id), REFRESH_MS)
    const logs = makeThrottle(() => client.invalidateQueries({ queryKey: ['logs', id] }), LOGS_REFRESH_MS)
    const waiting = makeThrottle(() => client.invalidateQueries({ queryKey: askWaiting().queryKey }), WAITING_REFRESH_MS)
    const close = openStream({
      client,
      lastEvent: 'end',
      onRefused: () => {
        void client.invalidateQueries({ queryKey: ['view', id, null] })
        refresh.ask()
        waiting.ask()
      },
      makeUrl: () => `/api/executions/${encodeURIComponent(id)}/watch?after=${readSeq(client, id)}`,
      on: {
        view: (data) => {
          if (waitsOtherwise(readView(client, id), data as PageView)) waiting.ask()
          client.setQueryData(askView(id, null).queryKey, data as PageView)
          void client.invalidateQueries({ queryKey: ['timeline', id] })
          if (hasNewLogs(client, id, data as LogsPart)) logs.ask() // the last message may be a view
          refresh.ask()
        },
        delta: (data) => {
          const before = readView(client, id)
          applyDelta(client, id, data as Delta)
          if (waitsOtherwise(before, readView(client, id))) waiting.ask()
          if (hasNewLogs(client, id, data as Delta)) logs.ask()
          refresh.ask()
        },
        end: () => {
          void client.invalidateQueries({ queryKey: ['view', id, null] })
          logs.ask()
          refresh.ask()
        },
      },
    })
    return () => {
      close()
      refresh.finish()
      logs.finish()
    }
  }, [client, id, isLive])
}

function readView(client: QueryClient, id: string): PageView | undefined {
  return client.getQueryData<PageView>(askView(id, null).queryKey)
}

function readSeq(client: QueryClient, id: string): number {
  return readView(client, id)?.seq ?? 0
}

function applyDelta(client: QueryClient, id: string, delta: Delta): void {
  client.setQueryData<PageView>(askView(id, null).queryKey, (view) => (view === undefined ? view : mergeDelta(view, delta)))
  const key = askTimeline(id, {}).queryKey
  const timeline = client.getQueryData<TimelineView>(key)
  if (timeline === undefined || timeline.exact) return
  const merged = mergeBands(timeline, delta.bands)
  if (merged === null) void client.invalidateQueries({ queryKey: key })
  else client.setQueryData(key, merged)
}

// Whether the step logs have another part than the one that was noticed last.
function hasNewLogs(client: QueryClient, id: string, message: LogsPart): boolean {
  const key = ['logs_part', id]
  const part = message.logs_part ?? null
  if (part === null || client.getQueryData(key) === part) return false
  client.setQueryData(key, part)
  return true
}

// Reads again what is on the screen and is not in the deltas.
function readAgain(client: QueryClient, id: string): void {
  const timeline = client.getQueryData<TimelineView>(askTimeline(id, {}).queryKey)
  if (timeline?.exact !== false) void client.invalidateQueries({ queryKey: ['timeline', id] })
  for (const subject of ['explain', 'items', 'runs', 'data']) {
    void client.invalidateQueries({ queryKey: [subject, id] })
  }
}

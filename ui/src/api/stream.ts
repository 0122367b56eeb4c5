import type { QueryClient } from '@tanstack/react-query'
import { askToSignIn } from './signIn'

// A server-sent stream that is open while the tab is visible, and opens again by itself when it breaks.

const FIRST_RETRY_MS = 1000
const MAX_RETRY_MS = 10_000

export interface Connection {
  downSince: number | null
}

export const CONNECTION_KEY = ['connection'] as const

export interface StreamOptions {
  // The URL is asked for at every opening, so that it can name where to go on.
  makeUrl: () => string
  on: Record<string, (data: unknown) => void>
  client: QueryClient
  // The server has nothing more to say after this event.
  lastEvent?: string
  // The server answered, but not with a stream: what the page knows may be old.
  onRefused?: () => void
}

function setConnection(client: QueryClient, downSince: number | null): void {
  const known = client.getQueryData<Connection>(CONNECTION_KEY)
  const isSame = (known?.downSince ?? null) === null && downSince === null
  const isKnownDown = known?.downSince != null && downSince !== null
  if (isSame || isKnownDown) return
  client.setQueryData<Connection>(CONNECTION_KEY, { downSince })
  if (downSince === null) askAgain(client)
}

// What could not be read while nobody answered is read when somebody does.
function askAgain(client: QueryClient): void {
  void client.refetchQueries({ type: 'active', predicate: (query) => query.state.status === 'error' })
}

// A browser does not tell why a stream was refused: the server may have nothing to stream, or a proxy may answer for it.
async function checkServer(client: QueryClient, onRefused?: () => void): Promise<void> {
  const response = await fetch('/api/session').catch(() => null)
  if (response?.status === 401) return askToSignIn()
  const isUp = response?.ok === true
  setConnection(client, isUp ? null : Date.now())
  if (isUp) onRefused?.()
}

// Opens the stream and returns a function that closes it for good.
export function openStream({ makeUrl, on, client, lastEvent, onRefused }: StreamOptions): () => void {
  let source: EventSource | null = null
  let timer: ReturnType<typeof setTimeout> | null = null
  let wait = FIRST_RETRY_MS
  let isDone = false

  const close = () => {
    source?.close()
    source = null
    if (timer !== null) clearTimeout(timer)
    timer = null
  }
  const open = () => {
    close()
    if (isDone || document.hidden) return
    const opened = new EventSource(makeUrl())
    source = opened
    opened.onopen = () => {
      wait = FIRST_RETRY_MS
      setConnection(client, null)
    }
    opened.onerror = () => {
      const isRefused = opened.readyState === EventSource.CLOSED
      close()
      if (isRefused) void checkServer(client, onRefused)
      else setConnection(client, Date.now())
      timer = setTimeout(open, wait)
      wait = Math.min(wait * 2, MAX_RETRY_MS)
    }
    for (const [name, handle] of Object.entries(on)) {
      opened.addEventListener(name, (event) => {
        handle(JSON.parse((event as MessageEvent<string>).data))
        if (name === lastEvent) stop()
      })
    }
  }
  const stop = () => {
    isDone = true
    close()
  }
  const onVisibility = () => (document.hidden ? close() : open())
  document.addEventListener('visibilitychange', onVisibility)
  open()
  return () => {
    stop()
    document.removeEventListener('visibilitychange', onVisibility)
  }
}

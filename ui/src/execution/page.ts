import { useCallback } from 'react'
import type { PageView } from '../api/types'
import { useResting } from '../parts/useResting'
import type { ExecutionSearch, Selection } from './cursor'

// An event: its place in the log, and its number in the execution if that is known.
export interface EventPlace {
  seq: number
  number?: number
}

// What all parts of the execution page are given.
export interface PageState {
  id: string
  // The state that is shown: the newest, or that after the event `at`.
  view: PageView
  // The newest state: actions and lengths refer to it.
  live: PageView
  // The address as it is shown: `at` follows when the state at that event is there.
  search: ExecutionSearch
  // The address as it is now, for keys that are pressed faster than states come.
  readSearch: () => ExecutionSearch
  selection: Selection
  // Shows an event of the log, with another change of the address.
  showEvent: (event: EventPlace | null, change?: Partial<ExecutionSearch>) => void
  // Changes the address. `replace`: the step before is not kept in the history.
  go: (change: Partial<ExecutionSearch>, replace?: boolean) => void
}

// Reasons and events follow the time cursor when it rests: on the way, they would compete with the states for the server.
const CURSOR_RESTS_MS = 120

// The event as of which reasons and events are shown.
export function useRestingSeq({ view, search, readSearch }: PageState): number | null {
  const isMoving = useCallback(() => readSearch().at !== search.at, [readSearch, search.at])
  return useResting(findShownSeq(view), CURSOR_RESTS_MS, isMoving)
}

// The event as of which the page is, or null if it shows the newest state.
function findShownSeq(view: PageView): number | null {
  return view.is_live ? null : view.seq
}

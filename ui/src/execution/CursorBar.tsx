import { Button, IconButton } from '../parts/Button'
import { formatCount } from '../parts/format'
import styles from './ExecutionPage.module.css'
import type { TimeCursor } from './hooks'
import type { PageState } from './page'

// Where in the log the page stands, with the ways to move there.
export function CursorBar({ state, cursor }: { state: PageState; cursor: TimeCursor }) {
  const { view, live, search } = state
  const isPast = search.at !== undefined
  return (
    <div className={styles.controls} role="group" aria-label="time">
      <IconButton icon="first" label="first event" onClick={cursor.toStart} />
      <IconButton icon="chevronLeft" label="event before ({)" onClick={() => cursor.toEvent(-1)} />
      <span>
        event {formatCount(view.number)} of {formatCount(live.events)}
      </span>
      <IconButton icon="chevronRight" label="next event (})" disabled={!isPast} onClick={() => cursor.toEvent(1)} />
      <IconButton icon="last" label="next landmark (])" disabled={!isPast} onClick={() => cursor.toLandmark(1)} />
      <Button aria-pressed={!isPast} title="show the newest state (l)" onClick={() => cursor.toNumber(null)}>
        Live
      </Button>
    </div>
  )
}

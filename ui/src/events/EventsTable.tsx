import { useVirtualizer } from '@tanstack/react-virtual'
import type { RefObject } from 'react'
import { memo, useEffect, useRef, useState } from 'react'
import type { ToldEventView } from '../api/types'
import type { EventFilter } from '../api/queries'
import { Empty } from '../parts/Empty'
import { formatCount } from '../parts/format'
import { Offset } from '../parts/Moment'
import { LoadingBar } from '../parts/Pane'
import { Problem } from '../parts/Problem'
import { EventDetail } from './EventDetail'
import styles from './Events.module.css'
import { isFailure, isOutside, readStep } from './pages'
import { useEvents } from './useEvents'
import { useSteadyScroll } from './useSteadyScroll'

const ROW_PX = 28
const NEAR_ROWS = 20

interface EventsTableProps {
  id: string
  filter: EventFilter
  startedAt: string | null
  lastSeq: number
  // The event of which the details are shown, and the one where the time cursor stands.
  selected: number | null
  cursor: number | null
  onSelect: (event: EventPlace | null) => void
  // To the event with this number.
  onCursor: (number: number) => void
}

interface EventPlace {
  seq: number
  number?: number
}

// The log as a table of constant size: only rows on the screen are elements.
export function EventsTable(props: EventsTableProps) {
  const { id, filter, lastSeq, selected, cursor, onSelect, onCursor, startedAt } = props
  const wanted = selected ?? cursor
  const [anchor, setAnchor] = useState(wanted)
  const query = useEvents(id, filter, anchor, lastSeq)
  const { rows, error, isFetching, refetch } = query
  useEffect(() => {
    if (wanted !== null && !isFetching && isOutside(rows, wanted)) setAnchor(wanted)
  }, [wanted, rows, isFetching])
  const detail = rows.find((row) => row.seq === selected)
  if (error) return <Problem error={error} again={() => void refetch()} />
  if (query.data && rows.length === 0 && !query.hasPreviousPage) return <Empty>No event is like that.</Empty>
  return (
    <div className={styles.split} data-open={detail !== undefined}>
      {isFetching && <LoadingBar />}
      <EventRows query={query} startedAt={startedAt} selected={selected} cursor={cursor} onSelect={onSelect} />
      {detail && (
        <EventDetail event={detail} rows={rows} startedAt={startedAt} onSelect={(seq) => onSelect({ seq })} onCursor={onCursor} onClose={() => onSelect(null)} />
      )}
    </div>
  )
}

interface EventRowsProps {
  query: ReturnType<typeof useEvents>
  startedAt: string | null
  selected: number | null
  cursor: number | null
  onSelect: (event: EventPlace) => void
}

function EventRows({ query, startedAt, selected, cursor, onSelect }: EventRowsProps) {
  const { rows } = query
  const scroll = useRef<HTMLDivElement>(null)
  const virtual = useVirtualizer({
    count: rows.length,
    getScrollElement: () => scroll.current,
    estimateSize: () => ROW_PX,
    overscan: 8,
  })
  useSteadyScroll(scroll, rows, { wanted: selected ?? cursor, rowPx: ROW_PX, isWhole: !query.hasMoreBelow })
  useMorePages(query, scroll, virtual.scrollOffset ?? 0)
  return (
    <div ref={scroll} className={styles.scroll} tabIndex={0} role="region" aria-label="events in the order of the log">
      <div className={styles.canvas} style={{ height: virtual.getTotalSize() }}>
        {virtual.getVirtualItems().map((item) => {
          const row = rows[item.index]
          if (row === undefined) return null
          return (
            <EventRow
              key={row.seq}
              row={row}
              top={item.start}
              startedAt={startedAt}
              isSelected={row.seq === selected}
              isFuture={cursor !== null && row.seq > cursor}
              onSelect={onSelect}
            />
          )
        })}
      </div>
    </div>
  )
}

interface EventRowProps {
  row: ToldEventView
  top: number
  startedAt: string | null
  isSelected: boolean
  isFuture: boolean
  onSelect: (event: EventPlace) => void
}

// A table that is scrolled, or stands at another moment, draws only the rows that have changed.
const EventRow = memo(function EventRow({ row, top, startedAt, isSelected, isFuture, onSelect }: EventRowProps) {
  return (
    <button
      type="button"
      className={styles.row}
      style={{ transform: `translateY(${top}px)` }}
      aria-current={isSelected}
      data-future={isFuture}
      onClick={() => onSelect(row)}
    >
      <span className={styles.number}>{formatCount(row.number)}</span>
      <span>
        <Offset at={row.at} start={startedAt} />
      </span>
      <span className={`${styles.type} ${isFailure(row) ? styles.failed : ''}`}>{row.type}</span>
      <span>{readStep(row)}</span>
      <span className={styles.summary} title={row.summary}>
        {row.summary}
      </span>
    </button>
  )
})

// Reads more when the rows on the screen come close to an end of what was read.
function useMorePages(query: ReturnType<typeof useEvents>, scroll: RefObject<HTMLDivElement | null>, offset: number): void {
  const { rows, isFetching, hasPreviousPage, hasMoreBelow } = query
  useEffect(() => {
    const element = scroll.current
    if (element === null || isFetching || rows.length === 0) return
    // Of the element itself: `offset` tells that it was scrolled, a little late.
    const first = element.scrollTop / ROW_PX
    const last = (element.scrollTop + element.clientHeight) / ROW_PX
    if (first < NEAR_ROWS && hasPreviousPage) void query.fetchPreviousPage()
    else if (last > rows.length - NEAR_ROWS && hasMoreBelow) void query.fetchNextPage()
  }, [offset, rows.length, isFetching, hasPreviousPage, hasMoreBelow])
}

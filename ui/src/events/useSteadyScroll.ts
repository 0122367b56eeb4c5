import type { RefObject } from 'react'
import { useLayoutEffect, useRef } from 'react'
import type { ToldEventView } from '../api/types'
import { findRow } from './pages'

interface SteadyOptions {
  // The event to bring onto the screen, when it changes.
  wanted: number | null
  rowPx: number
  // The last row is the end of the log.
  isWhole: boolean
}

interface Seen {
  seq: number
  offset: number
  isAtEnd: boolean
}

// Keeps the rows on the screen in their place when pages come or go above them. At the end it follows the log.
export function useSteadyScroll(scroll: RefObject<HTMLDivElement | null>, rows: ToldEventView[], options: SteadyOptions): void {
  const { wanted, rowPx, isWhole } = options
  const seen = useRef<Seen | null>(null)
  const shown = useRef<number | null>(null)
  useLayoutEffect(() => {
    const element = scroll.current
    if (element === null || rows.length === 0) return
    const index = wanted === null || wanted === shown.current ? -1 : findRow(rows, wanted)
    if (index !== -1) {
      shown.current = wanted
      showRow(element, index, rowPx)
      // A row that was asked for may be the last one that was read: that is not the end of the log, so nothing is followed.
      seen.current = readPlace(element, rows, rowPx, false)
    } else keepPlace(element, rows, seen.current, rowPx)
    const remember = () => {
      const isOpenedAtEnd = seen.current === null && wanted === null
      const mayFollow = isWhole || isOpenedAtEnd || seen.current?.isAtEnd === true
      seen.current = readPlace(element, rows, rowPx, mayFollow)
    }
    remember()
    element.addEventListener('scroll', remember, { passive: true })
    return () => element.removeEventListener('scroll', remember)
  }, [rows, scroll, wanted, rowPx, isWhole])
}

// Scrolls to the middle, unless the row is on the screen already.
function showRow(element: HTMLElement, index: number, rowPx: number): void {
  const top = index * rowPx
  const isVisible = top >= element.scrollTop && top + rowPx <= element.scrollTop + element.clientHeight
  if (!isVisible) element.scrollTop = top - (element.clientHeight - rowPx) / 2
}

function keepPlace(element: HTMLElement, rows: ToldEventView[], seen: Seen | null, rowPx: number): void {
  if (seen === null || seen.isAtEnd) {
    element.scrollTop = rows.length * rowPx
    return
  }
  const index = rows.findIndex((row) => row.seq === seen.seq)
  if (index !== -1) element.scrollTop = index * rowPx + seen.offset
}

function readPlace(element: HTMLElement, rows: ToldEventView[], rowPx: number, mayFollow: boolean): Seen | null {
  const index = Math.floor(element.scrollTop / rowPx)
  const row = rows[index]
  if (row === undefined) return null
  const isAtBottom = element.scrollTop + element.clientHeight >= rows.length * rowPx - rowPx / 2
  return { seq: row.seq, offset: element.scrollTop - index * rowPx, isAtEnd: isAtBottom && mayFollow }
}

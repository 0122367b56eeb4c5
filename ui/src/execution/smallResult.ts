import type { PreviewView, ResultReferenceView } from '../api/types'
import { summarizeValue } from '../parts/values'

// Results that are small enough to be shown at the top of the page. Pure.

const MAX_SMALL_BYTES = 2_000
const MAX_SHOWN_CHARS = 240
export const MAX_SMALL_ROWS = 5

export function isSmallResult({ bytes, format }: ResultReferenceView): boolean {
  return format !== 'manifest' && bytes !== null && bytes <= MAX_SMALL_BYTES
}

// The value on one line; null if there is nothing to show.
export function summarizeResult({ rows, row_count: total, value, cut }: PreviewView): string | null {
  if (rows === null) return value === null || value === undefined ? null : summarizeValue(value, MAX_SHOWN_CHARS)
  if (rows.length === 0) return null
  const text = rows.map((row) => summarizeValue(row, MAX_SHOWN_CHARS)).join('  ')
  const isWhole = text.length <= MAX_SHOWN_CHARS && !cut && (total === null || total <= rows.length)
  return isWhole ? text : `${text.slice(0, MAX_SHOWN_CHARS)} …`
}

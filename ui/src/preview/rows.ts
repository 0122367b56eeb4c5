import type { PreviewView } from '../api/types'
import { summarizeValue } from '../parts/values'

// Rows of a preview as cells of text. Pure.

export interface Cells {
  columns: { name: string; type: string | null }[]
  rows: string[][]
  hiddenColumns: number
}

export const MAX_COLUMNS = 30
const MAX_CELL_CHARS = 200

export function makeCells(preview: PreviewView): Cells | null {
  if (preview.rows === null) return null
  const all = preview.columns.length > 0 ? preview.columns : [{ name: 'value', type: null }]
  const columns = all.slice(0, MAX_COLUMNS)
  const makeRow = (row: unknown) =>
    columns.map((column, index) => summarizeValue(pickCell(row, column.name, index, all.length), MAX_CELL_CHARS))
  return { columns, rows: preview.rows.map(makeRow), hiddenColumns: all.length - columns.length }
}

function pickCell(row: unknown, name: string, index: number, count: number): unknown {
  if (Array.isArray(row)) return row[index]
  if (typeof row === 'object' && row !== null && name in row) return (row as Record<string, unknown>)[name]
  return count === 1 ? row : null
}

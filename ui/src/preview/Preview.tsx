import { useQuery } from '@tanstack/react-query'
import { useState } from 'react'
import type { PreviewView, ResultReferenceView } from '../api/types'
import { askReference } from '../api/queries'
import { Button } from '../parts/Button'
import { formatBytes, formatCount, formatNoun } from '../parts/format'
import { Problem } from '../parts/Problem'
import { Value } from '../parts/Value'
import styles from './Preview.module.css'
import { makeCells } from './rows'

const PAGE_ROWS = 50

// A stored payload: where it is, and some of its rows.
export function Preview({ id, reference }: { id: string; reference: ResultReferenceView }) {
  const [start, setStart] = useState(0)
  const { data, error, refetch } = useQuery(askReference(id, reference.ref_id, start, PAGE_ROWS))
  return (
    <div className={styles.preview}>
      <p className={styles.facts}>
        {reference.rows !== null && <span>{formatNoun(reference.rows, 'row')}</span>}
        {reference.bytes !== null && <span>{formatBytes(reference.bytes)}</span>}
        <span>{reference.format}</span>
        <span title={reference.uri}>tier {reference.tier}</span>
        {data?.expired_at && <span>expired</span>}
      </p>
      {error && <Problem error={error} again={() => void refetch()} />}
      {data?.preview && <PreviewTable preview={data.preview} />}
      {data?.preview && <Pages start={start} total={data.preview.row_count} onStart={setStart} />}
    </div>
  )
}

export function PreviewTable({ preview }: { preview: PreviewView }) {
  const cells = makeCells(preview)
  if (cells === null) return <Value value={preview.value} />
  return (
    <div className={styles.scroll} tabIndex={0} role="region" aria-label="rows">
      <table className={styles.table}>
        <thead>
          <tr>
            {cells.columns.map((column) => (
              <th key={column.name}>
                {column.name} <span className={styles.type}>{column.type}</span>
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {cells.rows.map((row, index) => (
            <tr key={index}>
              {row.map((cell, column) => (
                <td key={column} title={cell}>
                  {cell}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
      {cells.hiddenColumns > 0 && <p>and {formatNoun(cells.hiddenColumns, 'more column')}</p>}
    </div>
  )
}

function Pages({ start, total, onStart }: { start: number; total: number | null; onStart: (start: number) => void }) {
  if (total === null || total <= PAGE_ROWS) return null
  const end = Math.min(total, start + PAGE_ROWS)
  return (
    <p className={styles.pages}>
      <Button disabled={start === 0} onClick={() => onStart(Math.max(0, start - PAGE_ROWS))}>
        before
      </Button>
      <span>
        {formatCount(start + 1)}–{formatCount(end)} of {formatCount(total)}
      </span>
      <Button disabled={end >= total} onClick={() => onStart(start + PAGE_ROWS)}>
        next
      </Button>
    </p>
  )
}

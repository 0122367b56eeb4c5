import { Link } from '@tanstack/react-router'
import { memo } from 'react'
import type { ListedExecutionView } from '../api/types'
import { shortenId } from '../parts/format'
import { Age, Elapsed } from '../parts/Moment'
import { Status } from '../parts/Status'
import { describeStatus } from '../parts/tone'
import { describeRow } from './describe'
import styles from './Executions.module.css'

interface RowsProps {
  rows: ListedExecutionView[]
  selected: ReadonlySet<string>
  onToggle: (id: string) => void
  onToggleAll: () => void
}

export function Rows({ rows, selected, onToggle, onToggleAll }: RowsProps) {
  const isAll = rows.length > 0 && rows.every((row) => selected.has(row.execution_id))
  return (
    <table className={styles.table}>
      <caption className="visually-hidden">executions, newest first</caption>
      <thead>
        <tr>
          <th className={styles.colSelect}>
            <span className={styles.select}>
              <input type="checkbox" aria-label="select all rows" checked={isAll} onChange={onToggleAll} />
            </span>
          </th>
          <th className={styles.colStatus}>status</th>
          <th className={styles.colPath}>playbook</th>
          <th className={styles.colId}>id</th>
          <th className={styles.colStarted}>started</th>
          <th className={styles.colTook}>took</th>
          <th>what</th>
        </tr>
      </thead>
      <tbody>
        {rows.map((row) => (
          <Row key={row.execution_id} row={row} isSelected={selected.has(row.execution_id)} onToggle={onToggle} />
        ))}
      </tbody>
    </table>
  )
}

interface RowProps {
  row: ListedExecutionView
  isSelected: boolean
  onToggle: (id: string) => void
}

const WHAT_LOOKS = { error: styles.error, waits: styles.waitsText, plain: styles.what }

const Row = memo(function Row({ row, isSelected, onToggle }: RowProps) {
  const story = describeRow(row)
  const id = row.execution_id
  return (
    <tr className={styles.row}>
      <td>
        <label className={styles.select}>
          <input type="checkbox" aria-label={`select ${id}`} checked={isSelected} onChange={() => onToggle(id)} />
        </label>
      </td>
      <td>
        <Status {...describeStatus(row.status, row.waits_for !== null)} />
      </td>
      <td>
        <Link to="/executions/$id" params={{ id }} className={styles.open} data-row={id} title={row.path}>
          {row.path}
        </Link>
      </td>
      <td className={styles.id} title={id}>
        {shortenId(id)}
      </td>
      <td>
        <Age at={row.started_at} />
      </td>
      <td>
        <Elapsed start={row.started_at} end={row.ended_at} />
      </td>
      <td className={WHAT_LOOKS[story.look]} title={story.text}>
        {story.text}
      </td>
    </tr>
  )
})

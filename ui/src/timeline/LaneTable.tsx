import { memo } from 'react'
import { listRows } from './describe'
import type { Lane } from './pyramid'
import styles from './Timeline.module.css'

const MAX_ROWS_AT_ONCE = 50

// The figures of the lanes for those who do not see the canvas. Of many lanes, those that are scrolled to.
export const LaneTable = memo(function LaneTable({ lanes, origin, first }: { lanes: Lane[]; origin: number; first: number }) {
  const begin = lanes.length <= MAX_ROWS_AT_ONCE ? 0 : first
  const rows = listRows(lanes.slice(begin, begin + MAX_ROWS_AT_ONCE), origin)
  return (
    <table className={styles.hidden} aria-rowcount={lanes.length + 1}>
      <caption>Steps in time</caption>
      <thead>
        <tr aria-rowindex={1}>
          {['step', 'first', 'last', 'commands ended', 'items', 'failed'].map((name) => (
            <th key={name} scope="col">
              {name}
            </th>
          ))}
        </tr>
      </thead>
      <tbody>
        {rows.map((row, n) => (
          <tr key={row.step} aria-rowindex={begin + n + 2}>
            <th scope="row">{row.step}</th>
            <td>{row.first}</td>
            <td>{row.last}</td>
            <td>{row.commands}</td>
            <td>{row.items}</td>
            <td>{row.failed}</td>
          </tr>
        ))}
      </tbody>
    </table>
  )
})

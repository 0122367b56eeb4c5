import { useQuery } from '@tanstack/react-query'
import { Link } from '@tanstack/react-router'
import type { ListedExecutionView } from '../api/types'
import { askWaiting } from '../api/queries'
import { AskedQuestion } from '../parts/AskedQuestion'
import { Age } from '../parts/Moment'
import { Status } from '../parts/Status'
import { describeStatus } from '../parts/tone'
import { WaitActions } from '../parts/WaitActions'
import { describeWait } from './describe'
import styles from './Executions.module.css'

// What goes on only when a person acts: approvals, signals, paused and quarantined executions.
export function WaitsForMe() {
  const { data } = useQuery(askWaiting())
  const rows = data?.executions ?? []
  if (rows.length === 0) return null
  return (
    <section className={styles.section} aria-label="waits for you">
      <h2>waits for you</h2>
      {rows.map((row) => (
        <WaitingRow key={row.execution_id} row={row} />
      ))}
    </section>
  )
}

function WaitingRow({ row }: { row: ListedExecutionView }) {
  const wait = row.waits_for ?? { on: row.status, step: null, name: null, since: row.updated_at, question: {}, by: null }
  return (
    <div className={styles.waitingRow}>
      <Status {...describeStatus(row.status, true)} />
      <div className={styles.grow}>
        <Link to="/executions/$id" params={{ id: row.execution_id }} search={wait.step ? { step: wait.step } : {}}>
          {row.path}
        </Link>{' '}
        {describeWait(wait)} · since <Age at={wait.since} />
        <AskedQuestion question={wait.question} by={wait.by} />
      </div>
      <WaitActions
        executionId={row.execution_id}
        on={wait.on}
        step={wait.step}
        name={wait.name}
        question={wait.question}
        by={wait.by}
      />
    </div>
  )
}

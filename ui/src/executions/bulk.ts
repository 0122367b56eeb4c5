import type { BulkChange } from '../api/actions'
import type { ListedExecutionView } from '../api/types'
import { formatNoun } from '../parts/format'
import { hasEnded } from '../parts/tone'

// Which of the selected executions a change applies to, and what it does to them. Pure.

export interface BulkPlan {
  change: BulkChange
  ids: string[]
  leftOut: number
  title: string
  does: string
  button: string
}

function applies(change: BulkChange, row: ListedExecutionView): boolean {
  switch (change) {
    case 'retry':
      return row.status === 'failed' || row.status === 'cancelled'
    case 'cancel':
      return !hasEnded(row.status) && row.status !== 'cancelling'
    case 'pause':
      return row.status === 'running' || row.status === 'pending'
    case 'resume':
      return row.status === 'paused'
  }
}

const TEXTS: Record<BulkChange, { verb: string; does: string }> = {
  retry: {
    verb: 'Retry',
    does: 'Each starts a new execution that takes over what the old one finished, and runs the rest again. The old ones stay as they are.',
  },
  cancel: {
    verb: 'Cancel',
    does: 'Nothing more is started, and running commands are stopped. What they did so far stays done. A cancelled execution can be retried.',
  },
  pause: { verb: 'Pause', does: 'Running commands finish, and nothing more is started until somebody resumes.' },
  resume: { verb: 'Resume', does: 'What was held back is started.' },
}

export function planBulk(change: BulkChange, rows: ListedExecutionView[]): BulkPlan {
  const ids = rows.filter((row) => applies(change, row)).map((row) => row.execution_id)
  const { verb, does } = TEXTS[change]
  const title = `${verb} ${formatNoun(ids.length, 'execution')}?`
  return { change, ids, leftOut: rows.length - ids.length, title, does, button: `${verb} ${ids.length}` }
}

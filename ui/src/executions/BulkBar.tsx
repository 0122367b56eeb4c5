import { useMutation, useQueryClient } from '@tanstack/react-query'
import { Link } from '@tanstack/react-router'
import { useState } from 'react'
import type { BulkChange } from '../api/actions'
import { changeMany } from '../api/actions'
import type { ListedExecutionView, OutcomeView } from '../api/types'
import { Button } from '../parts/Button'
import { Dialog, DialogButtons } from '../parts/Dialog'
import { formatNoun, shortenId } from '../parts/format'
import { Problem } from '../parts/Problem'
import { ShapeIcon } from '../parts/Status'
import { useRefusal } from '../parts/useRefusal'
import type { BulkPlan } from './bulk'
import { planBulk } from './bulk'
import styles from './Executions.module.css'

interface BulkBarProps {
  rows: ListedExecutionView[]
  onClear: () => void
}

const CHANGES: [BulkChange, string][] = [
  ['retry', 'Retry failed…'],
  ['pause', 'Pause…'],
  ['resume', 'Resume…'],
  ['cancel', 'Cancel…'],
]

// What can be done with the selected rows. Every change is confirmed in a dialog that says what it does.
export function BulkBar({ rows, onClear }: BulkBarProps) {
  const [plan, setPlan] = useState<BulkPlan | null>(null)
  const refusal = useRefusal()
  if (rows.length === 0 && plan === null) return null
  return (
    <div className={styles.bulk} role="toolbar" aria-label="selected executions">
      <strong>{rows.length} selected</strong>
      {CHANGES.map(([change, label]) => {
        const offered = planBulk(change, rows)
        return (
          <Button
            key={change}
            look={change === 'cancel' ? 'danger' : 'plain'}
            disabled={offered.ids.length === 0}
            refusal={refusal}
            onClick={() => setPlan(offered)}
          >
            {label}
          </Button>
        )
      })}
      <Button look="quiet" onClick={onClear}>
        Clear
      </Button>
      {plan && (
        <BulkDialog
          plan={plan}
          onClose={(isDone) => {
            setPlan(null)
            if (isDone) onClear()
          }}
        />
      )}
    </div>
  )
}

function BulkDialog({ plan, onClose }: { plan: BulkPlan; onClose: (isDone: boolean) => void }) {
  const client = useQueryClient()
  const work = useMutation({
    mutationFn: () => changeMany(plan.change, plan.ids),
    onSettled: () => client.invalidateQueries(),
  })
  const outcomes = work.data?.outcomes
  const close = () => onClose(work.isSuccess)
  return (
    <Dialog title={plan.title} open onClose={close}>
      {outcomes === undefined ? (
        <>
          <p>{plan.does}</p>
          {plan.leftOut > 0 && <p>{formatNoun(plan.leftOut, 'selected execution')} left out: this does not apply there.</p>}
        </>
      ) : (
        <Outcomes outcomes={outcomes} />
      )}
      {work.error && <Problem error={work.error} />}
      <DialogButtons onClose={close}>
        {outcomes === undefined && (
          <Button
            look={plan.change === 'cancel' ? 'danger' : 'primary'}
            disabled={work.isPending}
            onClick={() => work.mutate()}
          >
            {plan.button}
          </Button>
        )}
      </DialogButtons>
    </Dialog>
  )
}

function Outcomes({ outcomes }: { outcomes: OutcomeView[] }) {
  return (
    <ul className={styles.outcomes} aria-label="outcomes">
      {outcomes.map((outcome) => (
        <li key={outcome.execution_id}>
          <ShapeIcon shape={outcome.ok ? 'disc-tick' : 'diamond'} tone={outcome.ok ? 'completed' : 'failed'} />
          <code>{shortenId(outcome.execution_id)}</code>
          {outcome.started && (
            <Link to="/executions/$id" params={{ id: outcome.started }}>
              started {shortenId(outcome.started)}
            </Link>
          )}
          {!outcome.ok && <span>{outcome.message ?? outcome.code}</span>}
        </li>
      ))}
    </ul>
  )
}

import { useMutation } from '@tanstack/react-query'
import { useState } from 'react'
import type { Change } from '../api/actions'
import { changeExecution } from '../api/actions'
import { Button } from './Button'
import { lazyDialog } from './lazyDialog'
import { Problem } from './Problem'
import type { Question } from './question'
import { useReadAgain } from './useReadAgain'
import { useRefusal } from './useRefusal'
import styles from './WaitActions.module.css'

const ApprovalDialog = lazyDialog(() => import('./ApprovalDialog'))
const SignalDialog = lazyDialog(() => import('./SignalDialog'))

interface WaitActionsProps {
  executionId: string
  on: string
  step: string | null
  name: string | null
  // Of an approval: what is asked, and who has started the execution.
  question?: Question
  by?: string | null
}

// What a person can do for an execution that waits for one.
export function WaitActions({ executionId, on, step, name, question = {}, by = null }: WaitActionsProps) {
  switch (on) {
    case 'approval':
      return step === null ? null : <ApprovalActions executionId={executionId} step={step} question={question} by={by} />
    case 'signal':
      return name === null ? null : <SignalAction executionId={executionId} name={name} />
    case 'paused':
      return <ChangeAction executionId={executionId} change="resume" label="Resume" />
    case 'quarantined':
      return <ChangeAction executionId={executionId} change="release" label="Release" />
    default:
      return null
  }
}

function ChangeAction({ executionId, change, label }: { executionId: string; change: Change; label: string }) {
  const onSettled = useReadAgain()
  const work = useMutation({ mutationFn: () => changeExecution(executionId, change), onSettled })
  const refusal = useRefusal()
  return (
    <>
      <Button refusal={refusal} disabled={work.isPending} onClick={() => work.mutate()}>
        {label}
      </Button>
      {work.error && <Problem error={work.error} />}
    </>
  )
}

interface ApprovalActionsProps {
  executionId: string
  step: string
  question: Question
  by: string | null
}

function ApprovalActions(asked: ApprovalActionsProps) {
  const [verdict, setVerdict] = useState<boolean | null>(null)
  const refusal = useRefusal()
  return (
    <span className={styles.actions}>
      <Button look="primary" refusal={refusal} onClick={() => setVerdict(true)}>
        Approve…
      </Button>
      <Button look="danger" refusal={refusal} onClick={() => setVerdict(false)}>
        Reject…
      </Button>
      {verdict !== null && <ApprovalDialog {...asked} approved={verdict} onClose={() => setVerdict(null)} />}
    </span>
  )
}

function SignalAction({ executionId, name }: { executionId: string; name: string }) {
  const [isOpen, setOpen] = useState(false)
  const refusal = useRefusal()
  return (
    <>
      <Button refusal={refusal} onClick={() => setOpen(true)}>
        Send {name}…
      </Button>
      {isOpen && <SignalDialog executionId={executionId} name={name} onClose={() => setOpen(false)} />}
    </>
  )
}

import { useMutation, useQuery } from '@tanstack/react-query'
import { useState } from 'react'
import { decideApproval } from '../api/actions'
import { askSession } from '../api/queries'
import { AskedQuestion } from './AskedQuestion'
import { Button } from './Button'
import { makeApprovalCommand } from './cli'
import { CopyAsCli } from './Copy'
import { Dialog, DialogButtons } from './Dialog'
import { Problem } from './Problem'
import type { Question } from './question'
import { useReadAgain } from './useReadAgain'
import styles from './WaitActions.module.css'

interface ApprovalDialogProps {
  executionId: string
  step: string
  question: Question
  by: string | null
  approved: boolean
  onClose: () => void
}

export default function ApprovalDialog({ executionId, step, question, by, approved, onClose }: ApprovalDialogProps) {
  const { data: session } = useQuery(askSession())
  const [comment, setComment] = useState('')
  const onSettled = useReadAgain()
  const work = useMutation({
    mutationFn: () =>
      decideApproval(executionId, step, { approved, by: session?.name ?? 'web', comment: comment.trim() || null }),
    onSuccess: onClose,
    onSettled,
  })
  const verb = approved ? 'Approve' : 'Reject'
  const does = approved
    ? 'The execution goes on after this step.'
    : 'The step fails with REJECTED, which its router may handle; else the execution fails.'
  return (
    <Dialog title={`${verb} ${step}?`} open onClose={onClose}>
      <AskedQuestion question={question} by={by} />
      <p>{does}</p>
      <label className={styles.field}>
        Comment
        <textarea rows={2} maxLength={2000} value={comment} onChange={(event) => setComment(event.target.value)} />
      </label>
      {work.error && <Problem error={work.error} />}
      <DialogButtons onClose={onClose}>
        <CopyAsCli command={makeApprovalCommand(executionId, step, approved, comment)} />
        <Button look={approved ? 'primary' : 'danger'} disabled={work.isPending} onClick={() => work.mutate()}>
          {verb}
        </Button>
      </DialogButtons>
    </Dialog>
  )
}

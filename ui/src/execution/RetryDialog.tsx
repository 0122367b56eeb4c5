import { useMutation, useQuery } from '@tanstack/react-query'
import { useNavigate } from '@tanstack/react-router'
import type { ChosenItems } from '../api/actions'
import { retryExecution } from '../api/actions'
import { askRetry } from '../api/queries'
import { Button } from '../parts/Button'
import { CopyAsCli } from '../parts/Copy'
import { Dialog, DialogButtons } from '../parts/Dialog'
import { Problem } from '../parts/Problem'
import { RepeatPlan } from './RepeatPlan'
import { makeRetryCommand, makeRetryTitle } from './summary'

interface RetryDialogProps {
  id: string
  // The failed items to run again, by step; without it, all that did not finish.
  items?: ChosenItems
  onClose: () => void
}

// Says what a retry would do, then does it and opens the new execution.
export default function RetryDialog({ id, items = {}, onClose }: RetryDialogProps) {
  const navigate = useNavigate()
  const { data: plan, error } = useQuery(askRetry(id, items))
  const work = useMutation({
    mutationFn: () => retryExecution(id, { items }),
    onSuccess: (started) => {
      onClose()
      void navigate({ to: '/executions/$id', params: { id: started.execution_id } })
    },
  })
  return (
    <Dialog title={makeRetryTitle(items)} open onClose={onClose}>
      <p>A new execution takes over what this one finished. This one stays as it is.</p>
      {plan && <RepeatPlan plan={plan} />}
      {(error ?? work.error) && <Problem error={error ?? work.error} />}
      <DialogButtons onClose={onClose}>
        <CopyAsCli command={makeRetryCommand(id, items)} />
        <Button look="primary" disabled={plan === undefined || work.isPending} onClick={() => work.mutate()}>
          Retry
        </Button>
      </DialogButtons>
    </Dialog>
  )
}

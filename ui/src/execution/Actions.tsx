import { useState } from 'react'
import type { ButtonLook } from '../parts/Button'
import { Button } from '../parts/Button'
import type { IconName } from '../parts/Icon'
import { lazyDialog } from '../parts/lazyDialog'
import { usePageCommands } from '../parts/pageCommands'
import { Problem } from '../parts/Problem'
import { useRefusal } from '../parts/useRefusal'
import type { ExecutionAction } from './availableActions'
import { ACTION_LABELS, listActions } from './availableActions'
import type { PageState } from './page'
import { useChange } from './useChange'

const CancelDialog = lazyDialog(() => import('./CancelDialog'))
const RerunDialog = lazyDialog(() => import('./RerunDialog'))
const RetryDialog = lazyDialog(() => import('./RetryDialog'))
const SignalDialog = lazyDialog(() => import('../parts/SignalDialog'))

type OpenDialog = 'retry' | 'rerun' | 'signal' | 'cancel' | null

const ACTION_LOOKS: Partial<Record<ExecutionAction, { look?: ButtonLook; icon?: IconName }>> = {
  retry: { look: 'primary', icon: 'retry' },
  pause: { icon: 'pause' },
  resume: { icon: 'play' },
  cancel: { look: 'danger', icon: 'stop' },
}

// What a person can do with the execution as it is now. While an earlier state is shown, all of it rests.
export function Actions({ state }: { state: PageState }) {
  const [dialog, setDialog] = useState<OpenDialog>(null)
  const { id, live, search } = state
  const close = () => setDialog(null)
  const notAllowed = useRefusal()
  const refusal = search.at === undefined ? notAllowed : 'this is an earlier state: go back to live to act (l)'
  const work = useChange(id)
  const can = listActions(live.status, live.failures.total > 0)
  const does: Record<ExecutionAction, () => void> = {
    retry: () => setDialog('retry'),
    rerun: () => setDialog('rerun'),
    signal: () => setDialog('signal'),
    cancel: () => setDialog('cancel'),
    pause: () => work.mutate('pause'),
    resume: () => work.mutate('resume'),
  }
  usePageCommands(can.map((action) => ({ label: ACTION_LABELS[action], hint: 'this execution', refusal, run: does[action] })))
  return (
    <>
      {work.error && <Problem error={work.error} />}
      {can.map((action) => (
        <Button key={action} {...ACTION_LOOKS[action]} refusal={refusal} onClick={does[action]}>
          {ACTION_LABELS[action]}
        </Button>
      ))}
      {dialog === 'retry' && <RetryDialog id={id} onClose={close} />}
      {dialog === 'rerun' && <RerunDialog state={state} onClose={close} />}
      {dialog === 'signal' && <SignalDialog executionId={id} name={null} onClose={close} />}
      {dialog === 'cancel' && <CancelDialog id={id} onClose={close} />}
    </>
  )
}

import { useState } from 'react'
import { Button } from '../parts/Button'
import { lazyDialog } from '../parts/lazyDialog'
import { Problem } from '../parts/Problem'
import { hasEnded } from '../parts/tone'
import type { PageState } from './page'
import { useChange } from './useChange'

const CancelDialog = lazyDialog(() => import('./CancelDialog'))
const RerunDialog = lazyDialog(() => import('./RerunDialog'))
const RetryDialog = lazyDialog(() => import('./RetryDialog'))
const SignalDialog = lazyDialog(() => import('../parts/SignalDialog'))

type OpenDialog = 'retry' | 'rerun' | 'signal' | 'cancel' | null

// What a person can do with the execution as it is now. While an earlier state is shown, all of it rests.
export function Actions({ state }: { state: PageState }) {
  const [dialog, setDialog] = useState<OpenDialog>(null)
  const { id, live, search } = state
  const close = () => setDialog(null)
  const isPast = search.at !== undefined
  const rest = isPast ? { disabled: true, title: 'this is an earlier state: go back to live to act (l)' } : {}
  const isOver = hasEnded(live.status)
  const mayRetry = live.status === 'failed' || live.status === 'cancelled' || (isOver && live.failures.total > 0)
  return (
    <>
      {!isOver && <ChangeButtons state={state} rest={rest} onCancel={() => setDialog('cancel')} />}
      {!isOver && (
        <Button {...rest} onClick={() => setDialog('signal')}>
          Signal…
        </Button>
      )}
      {isOver && (
        <Button {...rest} onClick={() => setDialog('rerun')}>
          Rerun…
        </Button>
      )}
      {mayRetry && (
        <Button look="primary" icon="retry" {...rest} onClick={() => setDialog('retry')}>
          Retry failed
        </Button>
      )}
      {dialog === 'retry' && <RetryDialog id={id} onClose={close} />}
      {dialog === 'rerun' && <RerunDialog state={state} onClose={close} />}
      {dialog === 'signal' && <SignalDialog executionId={id} name={null} onClose={close} />}
      {dialog === 'cancel' && <CancelDialog id={id} onClose={close} />}
    </>
  )
}

interface ChangeButtonsProps {
  state: PageState
  rest: { disabled?: boolean; title?: string }
  onCancel: () => void
}

function ChangeButtons({ state, rest, onCancel }: ChangeButtonsProps) {
  const { id, live } = state
  const work = useChange(id)
  const isPaused = live.status === 'paused'
  const mayPause = live.status === 'running' || live.status === 'pending'
  return (
    <>
      {work.error && <Problem error={work.error} />}
      {mayPause && (
        <Button icon="pause" {...rest} onClick={() => work.mutate('pause')}>
          Pause
        </Button>
      )}
      {isPaused && (
        <Button icon="play" {...rest} onClick={() => work.mutate('resume')}>
          Resume
        </Button>
      )}
      {live.status !== 'cancelling' && (
        <Button look="danger" icon="stop" {...rest} onClick={onCancel}>
          Cancel…
        </Button>
      )}
    </>
  )
}

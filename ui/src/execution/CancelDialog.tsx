import { Button } from '../parts/Button'
import { joinCommand } from '../parts/cli'
import { CopyAsCli } from '../parts/Copy'
import { Dialog, DialogButtons } from '../parts/Dialog'
import { Problem } from '../parts/Problem'
import { useChange } from './useChange'

export default function CancelDialog({ id, onClose }: { id: string; onClose: () => void }) {
  const work = useChange(id, onClose)
  return (
    <Dialog title="Cancel this execution?" open onClose={onClose}>
      <p>
        Nothing more is started, and running commands are stopped. What they did so far stays done. A cancelled execution can
        be retried.
      </p>
      {work.error && <Problem error={work.error} />}
      <DialogButtons onClose={onClose}>
        <CopyAsCli command={joinCommand('noetl', 'exec', 'cancel', id)} />
        <Button look="danger" disabled={work.isPending} onClick={() => work.mutate('cancel')}>
          Cancel the execution
        </Button>
      </DialogButtons>
    </Dialog>
  )
}

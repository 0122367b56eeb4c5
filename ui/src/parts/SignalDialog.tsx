import { useMutation } from '@tanstack/react-query'
import { useState } from 'react'
import { sendSignal } from '../api/actions'
import { Button } from './Button'
import { makeSignalCommand } from './cli'
import { CopyAsCli } from './Copy'
import { Dialog, DialogButtons } from './Dialog'
import { parsePayload } from './payload'
import { PayloadField } from './PayloadField'
import { Problem } from './Problem'
import { useReadAgain } from './useReadAgain'
import styles from './WaitActions.module.css'

interface SignalDialogProps {
  executionId: string
  name: string | null
  onClose: () => void
}

// Sends a signal. Without a name given, it is asked for.
export default function SignalDialog({ executionId, name, onClose }: SignalDialogProps) {
  const [typedName, setTypedName] = useState(name ?? '')
  const [text, setText] = useState('')
  const onSettled = useReadAgain()
  const parsed = parsePayload(text)
  const work = useMutation({
    mutationFn: () => sendSignal(executionId, typedName.trim(), parsed.value),
    onSuccess: onClose,
    onSettled,
  })
  const isReady = parsed.problem === null && typedName.trim() !== ''
  return (
    <Dialog title="Send a signal" open onClose={onClose}>
      <p>The signal is kept until a step that waits for its name takes it.</p>
      <label className={styles.field}>
        Name
        <input value={typedName} maxLength={200} onChange={(event) => setTypedName(event.target.value)} />
      </label>
      <PayloadField label="Payload (may be empty)" text={text} problem={parsed.problem} onChange={setText} />
      {work.error && <Problem error={work.error} />}
      <DialogButtons onClose={onClose}>
        {isReady && <CopyAsCli command={makeSignalCommand(executionId, typedName, parsed.value)} />}
        <Button look="primary" disabled={!isReady || work.isPending} onClick={() => work.mutate()}>
          Send
        </Button>
      </DialogButtons>
    </Dialog>
  )
}

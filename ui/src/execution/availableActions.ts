import { hasEnded } from '../parts/tone'

// What a person can do with an execution in this status, in the order of the buttons. Pure.

export type ExecutionAction = 'pause' | 'resume' | 'cancel' | 'signal' | 'rerun' | 'retry'

export const ACTION_LABELS: Record<ExecutionAction, string> = {
  pause: 'Pause',
  resume: 'Resume',
  cancel: 'Cancel…',
  signal: 'Signal…',
  rerun: 'Rerun…',
  retry: 'Retry failed',
}

export function listActions(status: string, hasFailures: boolean): ExecutionAction[] {
  if (hasEnded(status)) return hasFailures || status !== 'completed' ? ['rerun', 'retry'] : ['rerun']
  const actions: ExecutionAction[] = []
  if (status === 'running' || status === 'pending') actions.push('pause')
  if (status === 'paused') actions.push('resume')
  if (status !== 'cancelling') actions.push('cancel')
  return [...actions, 'signal']
}

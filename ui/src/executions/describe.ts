import type { AwaitedView, ListedExecutionView, ProgressView } from '../api/types'
import { formatCount, formatPercent } from '../parts/format'
import { describeQuestion } from '../parts/question'

// What the last column says of an execution. Pure.

export interface RowStory {
  look: 'error' | 'waits' | 'plain'
  text: string
}

export function describeRow(row: ListedExecutionView): RowStory {
  if (row.status === 'failed' || row.status === 'quarantined') return { look: 'error', text: row.error ?? 'failed' }
  if (row.waits_for) {
    const asked = describeQuestion(row.waits_for.question)
    const text = describeWait(row.waits_for)
    return { look: 'waits', text: asked === '' ? text : `${text}: ${asked}` }
  }
  if (row.progress) return { look: 'plain', text: describeProgress(row.progress) }
  if (row.recovered > 0) return { look: 'plain', text: `recovered from ${formatCount(row.recovered)} failed` }
  return { look: 'plain', text: row.error ?? '' }
}

export function describeWait(wait: AwaitedView): string {
  const place = wait.step === null ? '' : `${wait.step} `
  switch (wait.on) {
    case 'approval':
      return `${place}waits for an approval`
    case 'signal':
      return `${place}waits for the signal ${wait.name ?? ''}`.trim()
    case 'paused':
      return 'paused by a person'
    case 'quarantined':
      return 'set aside: an event could not be read'
    default:
      return `${place}waits for ${wait.on} ${wait.name ?? ''}`.trim()
  }
}

export function describeProgress(progress: ProgressView): string {
  const { step, done, total, failed } = progress
  const part = total === null ? formatCount(done) : `${formatPercent(done, total)} of ${formatCount(total)}`
  const failures = failed === 0 ? '' : `, ${formatCount(failed)} failed`
  return `${step} ${part}${failures}`
}

import type { RepeatView } from '../api/types'
import { describeRepeat } from './summary'

// What a retry or a rerun would do.
export function RepeatPlan({ plan }: { plan: RepeatView }) {
  return (
    <ul aria-label="what it does">
      {describeRepeat(plan).map((line) => (
        <li key={line}>{line}</li>
      ))}
    </ul>
  )
}

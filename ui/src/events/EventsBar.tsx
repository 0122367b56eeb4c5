import type { EventFilter } from '../api/queries'
import { formatCount } from '../parts/format'
import { TypedField } from '../parts/TypedField'
import styles from './Events.module.css'

const GROUPS = ['failures', 'retries', 'waits', 'loops', 'life']

interface EventsBarProps {
  filter: EventFilter
  steps: string[]
  total: number
  onChange: (filter: EventFilter) => void
}

// The filters of the log: groups of types, a step, a text.
export function EventsBar({ filter, steps, total, onChange }: EventsBarProps) {
  return (
    <div className={styles.bar} role="group" aria-label="which events">
      {[undefined, ...GROUPS].map((group) => (
        <button
          key={group ?? 'all'}
          type="button"
          className={styles.group}
          aria-pressed={filter.group === group}
          onClick={() => onChange({ ...filter, group })}
        >
          {group ?? 'all'}
        </button>
      ))}
      <select
        aria-label="events of the step"
        value={filter.step ?? ''}
        onChange={(event) => onChange({ ...filter, step: event.target.value || undefined })}
      >
        <option value="">every step</option>
        {steps.map((step) => (
          <option key={step}>{step}</option>
        ))}
      </select>
      <TypedField
        label="events with the text"
        placeholder="text"
        value={filter.text ?? ''}
        onChange={(text) => onChange({ ...filter, text: text || undefined })}
      />
      <span className={styles.total}>{formatCount(total)} events</span>
    </div>
  )
}

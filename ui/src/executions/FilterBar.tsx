import type { CountsView } from '../api/types'
import { Button } from '../parts/Button'
import { CopyAsCli } from '../parts/Copy'
import { formatCount, formatDate, shortenId } from '../parts/format'
import { ShapeIcon } from '../parts/Status'
import { getLook } from '../parts/tone'
import { TypedField } from '../parts/TypedField'
import styles from './Executions.module.css'
import type { ListSearch } from './filter'
import { listStatuses, makeListCommand, toggleStatus, WAITING } from './filter'
import { SavedFilters } from './SavedFilters'

const ALWAYS = ['failed', 'running', WAITING, 'completed']
const SOMETIMES = ['quarantined', 'paused', 'pending', 'cancelling', 'cancelled']
const WINDOWS: [string, string][] = [
  ['', 'any time'],
  ['1h', 'last hour'],
  ['1d', 'last 24 h'],
  ['7d', 'last 7 days'],
  ['30d', 'last 30 days'],
]

interface FilterProps {
  search: ListSearch
  onChange: (search: ListSearch) => void
}

export function Chips({ search, onChange, counts }: FilterProps & { counts: CountsView['counts'] | undefined }) {
  const chosen = listStatuses(search)
  const rare = SOMETIMES.filter((status) => (counts?.[status]?.n ?? 0) > 0 || chosen.includes(status))
  return (
    <div className={styles.bar} role="group" aria-label="status">
      {[...ALWAYS, ...rare].map((status) => {
        const look = getLook(status)
        const count = counts?.[status]
        return (
          <Button
            key={status}
            className={styles.chip ?? ''}
            aria-pressed={chosen.includes(status)}
            title={status === WAITING ? 'waits for a person: approval, signal, paused, quarantined' : undefined}
            onClick={() => onChange(toggleStatus(search, status))}
          >
            <ShapeIcon shape={look.shape} tone={look.tone} />
            {look.word}
            {count && <span className={styles.count}>{formatCount(count.n, count.more)}</span>}
          </Button>
        )
      })}
    </div>
  )
}

export function WindowSelect({ search, onChange }: FilterProps) {
  if (search.until !== undefined) {
    const text = `${search.since ? formatDate(search.since) : '…'} – ${formatDate(search.until)}`
    return (
      <Button
        aria-pressed="true"
        title="show any time"
        onClick={() => onChange({ ...search, since: undefined, until: undefined, before: undefined })}
      >
        {text} ✕
      </Button>
    )
  }
  const value = search.since ?? ''
  const isOther = !WINDOWS.some(([since]) => since === value)
  return (
    <div className={styles.bar}>
      <select
        aria-label="started"
        value={value}
        onChange={(event) => onChange({ ...search, since: event.target.value || undefined, before: undefined })}
      >
        {WINDOWS.map(([since, label]) => (
          <option key={since} value={since}>
            {label}
          </option>
        ))}
        {isOther && <option value={value}>since {value}</option>}
      </select>
    </div>
  )
}

export function FilterBar({ search, onChange }: FilterProps) {
  return (
    <div className={styles.bar} role="search" aria-label="executions">
      <TypedField
        className={styles.path}
        label="playbook"
        placeholder="path, or etl/*"
        value={search.path ?? ''}
        onChange={(path) => onChange({ ...search, path: path || undefined, before: undefined })}
      />
      <TypedField
        className={styles.text}
        label="id, path or words of the error"
        placeholder="id, path or words of the error"
        value={search.q ?? ''}
        onChange={(q) => onChange({ ...search, q: q || undefined, before: undefined })}
      />
      {search.parent !== undefined && (
        <Button
          aria-pressed="true"
          title="show executions that are no children too"
          onClick={() => onChange({ ...search, parent: undefined, before: undefined })}
        >
          children of {shortenId(search.parent)} ✕
        </Button>
      )}
      <label className={styles.check}>
        <input
          type="checkbox"
          checked={search.roots === 'true'}
          onChange={(event) => onChange({ ...search, roots: event.target.checked ? 'true' : undefined, before: undefined })}
        />
        without children
      </label>
      <SavedFilters search={search} onChange={onChange} />
      <CopyAsCli command={makeListCommand(search)} />
    </div>
  )
}

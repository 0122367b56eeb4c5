import { Link } from '@tanstack/react-router'
import type { ItemView } from '../api/types'
import { formatCount, formatDuration, formatNoun, shortenId } from '../parts/format'
import { Status } from '../parts/Status'
import { Value } from '../parts/Value'
import { summarizeValue } from '../parts/values'
import styles from './Inspector.module.css'

interface ItemRowProps {
  item: ItemView
  isSelected: boolean
  onSelect: (item: number) => void
  isMarked: boolean
  // Marks a failed item; null: nothing can be marked.
  onMark: ((item: number) => void) | null
}

export function ItemRow({ item, isSelected, onSelect, isMarked, onMark }: ItemRowProps) {
  const what = item.error ? `${item.error.code} ${item.error.message}` : summarizeValue(item.value)
  const isFailed = item.status === 'error'
  return (
    <li className={styles.itemLine}>
      {onMark !== null && (
        <label className={styles.mark}>
          {isFailed && (
            <input
              type="checkbox"
              aria-label={`choose item ${item.index}`}
              checked={isMarked}
              onChange={() => onMark(item.index)}
            />
          )}
        </label>
      )}
      <button type="button" className={styles.item} aria-current={isSelected} onClick={() => onSelect(item.index)}>
        <span className={styles.number}>{formatCount(item.index)}</span>
        <Status status={item.status} />
        <span title={what}>{what}</span>
        <span className={styles.faint}>{item.tries !== null && item.tries > 1 ? formatNoun(item.tries, 'try', 'tries') : ''}</span>
        <span className={styles.faint}>{item.ms === null ? '' : formatDuration(item.ms)}</span>
      </button>
      <ChildLinks ids={item.children} />
    </li>
  )
}

// The executions that an item has started.
export function ChildLinks({ ids }: { ids: string[] }) {
  return (
    <>
      {ids.map((id) => (
        <Link key={id} to="/executions/$id" params={{ id }} className={styles.child}>
          child {shortenId(id)}
        </Link>
      ))}
    </>
  )
}

export function ItemDetail({ item }: { item: ItemView }) {
  return (
    <section aria-label={`item ${item.index}`}>
      <div className={styles.sides}>
        <div className={styles.side}>
          <h3>item {formatCount(item.index)}</h3>
          <Value value={item.item} />
        </div>
        <div className={styles.side}>
          <h3>output</h3>
          {item.error ? <ItemError error={item.error} /> : <Value value={item.value} />}
        </div>
      </div>
      {item.error?.trace && <pre className={styles.trace}>{item.error.trace}</pre>}
      <p className={styles.faint}>
        {item.worker && `worker ${item.worker} · `}
        {item.command_id && `command ${item.command_id}`} <ChildLinks ids={item.children} />
      </p>
    </section>
  )
}

function ItemError({ error }: { error: { code: string; message: string } }) {
  return (
    <p>
      <span className={styles.code}>{error.code}</span> {error.message}
    </p>
  )
}

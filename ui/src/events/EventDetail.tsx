import type { ToldEventView } from '../api/types'
import { Button, IconButton, LinkButton } from '../parts/Button'
import { formatCount } from '../parts/format'
import { Clock, Offset } from '../parts/Moment'
import { Value } from '../parts/Value'
import styles from './Events.module.css'

interface EventDetailProps {
  event: ToldEventView
  rows: ToldEventView[]
  startedAt: string | null
  onSelect: (seq: number) => void
  onCursor: (number: number) => void
  onClose: () => void
}

export function EventDetail({ event, rows, startedAt, onSelect, onCursor, onClose }: EventDetailProps) {
  return (
    <aside className={styles.detail} aria-label={`event ${event.number}`}>
      <div className={styles.detailHead}>
        <strong>event {formatCount(event.number)}</strong>
        <code>{event.type}</code>
        <Clock at={event.at} />
        <Offset at={event.at} start={startedAt} />
        <Button onClick={() => onCursor(event.number)}>State as of here</Button>
        <IconButton icon="close" label="close" onClick={onClose} />
      </div>
      {event.summary && <p>{event.summary}</p>}
      <Seqs label="caused by" seqs={event.causes} rows={rows} onSelect={onSelect} />
      <Seqs label="led to" seqs={event.led_to} rows={rows} onSelect={onSelect} />
      <Value value={event.data} />
    </aside>
  )
}

interface SeqsProps {
  label: string
  seqs: number[]
  rows: ToldEventView[]
  onSelect: (seq: number) => void
}

// Events are named by their number in the execution, where it is known: sequence numbers have gaps.
function Seqs({ label, seqs, rows, onSelect }: SeqsProps) {
  if (seqs.length === 0) return null
  const numbers = new Map(rows.map((row) => [row.seq, row.number]))
  return (
    <p>
      {label}{' '}
      {seqs.map((seq, index) => {
        const number = numbers.get(seq)
        return (
          <span key={seq}>
            {index > 0 && ', '}
            <LinkButton onClick={() => onSelect(seq)}>{number === undefined ? 'an event' : formatCount(number)}</LinkButton>
          </span>
        )
      })}
    </p>
  )
}

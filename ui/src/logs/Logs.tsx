import { useQuery } from '@tanstack/react-query'
import { useState } from 'react'
import { makeUrl } from '../api/call'
import type { LogLine } from '../api/messages'
import { askLogs } from '../api/queries'
import { joinCommand } from '../parts/cli'
import { CopyAsCli } from '../parts/Copy'
import { Empty } from '../parts/Empty'
import { formatCount } from '../parts/format'
import { Clock } from '../parts/Moment'
import { Problem } from '../parts/Problem'
import { TypedField } from '../parts/TypedField'
import styles from './Logs.module.css'

const TAIL_LINES = 200

// The last lines that the step printed, of one item or of all. The watch makes them new while the step runs.
export function Logs({ id, step, item }: { id: string; step: string | null; item: number | null }) {
  const [text, setText] = useState('')
  const filter = { step: step ?? undefined, item: item ?? undefined, text: text || undefined, tail: TAIL_LINES }
  const { data, error, refetch } = useQuery(askLogs(id, filter))
  const lines = data?.slice(-TAIL_LINES)
  const whole = makeUrl(`/api/executions/${id}/logs`, { step })
  return (
    <div className={styles.logs}>
      <div className={styles.bar}>
        <TypedField label="lines with the text" placeholder="text" value={text} onChange={setText} />
        {item !== null && <span>of item {formatCount(item)}</span>}
        <a href={whole} download={`${id}-${step ?? 'all'}.jsonl`}>
          download
        </a>
        <CopyAsCli command={joinCommand('noetl', 'exec', 'logs', id, step && '--step', step)} />
      </div>
      {error && <Problem error={error} again={() => void refetch()} />}
      {lines?.length === 0 && <Empty>{text ? 'No line has this text.' : 'It printed nothing.'}</Empty>}
      {lines && lines.length > 0 && (
        <>
          {lines.length === TAIL_LINES && <p className={styles.bar}>the last {TAIL_LINES} lines</p>}
          <ol className={styles.lines} aria-label="log lines">
            {lines.map((line) => (
              <Line key={`${line.part} ${line.command_id} ${line.attempt} ${line.seq}`} line={line} />
            ))}
          </ol>
        </>
      )}
    </div>
  )
}

function Line({ line }: { line: LogLine }) {
  const look = line.stream === 'stderr' ? styles.stderr : line.stream === 'noetl' ? styles.noetl : ''
  const place = line.item === null ? `task ${line.task ?? '–'}` : `item ${formatCount(line.item)}`
  return (
    <li className={styles.line}>
      <Clock at={line.at} />
      <span className={`${styles.text} ${look}`} title={`${place}, attempt ${line.attempt}, ${line.stream}`}>
        {line.line}
      </span>
    </li>
  )
}

import { useQuery } from '@tanstack/react-query'
import { useState } from 'react'
import type { AttemptView, RunView } from '../api/types'
import { askRuns } from '../api/queries'
import { Button, LinkButton } from '../parts/Button'
import { formatCount, formatCommandItems } from '../parts/format'
import { Clock, Elapsed } from '../parts/Moment'
import { Problem } from '../parts/Problem'
import { Status } from '../parts/Status'
import { Values } from '../parts/Value'
import styles from './Inspector.module.css'

interface AttemptsProps {
  id: string
  step: string
  onEvent: (seq: number) => void
  // The items of a command of a run were chosen.
  onItems: (run: number, items: { first: number; count: number }) => void
}

// Each run of the step, with the attempts of its commands: who took them, when, and how they ended.
export function Attempts({ id, step, onEvent, onItems }: AttemptsProps) {
  const [before, setBefore] = useState<number | null>(null)
  const { data, error, refetch } = useQuery(askRuns(id, step, before))
  if (error) return <Problem error={error} again={() => void refetch()} />
  if (data === undefined) return null
  return (
    <div className={styles.body}>
      {data.runs.length === 0 && <p className={styles.faint}>it has not run</p>}
      {data.runs.map((run) => (
        <Run key={run.run} run={run} onEvent={onEvent} onItems={onItems} />
      ))}
      <div className={styles.bar}>
        {before !== null && <Button onClick={() => setBefore(null)}>newest</Button>}
        {data.next !== null && <Button onClick={() => setBefore(data.next)}>older</Button>}
      </div>
    </div>
  )
}

type RunProps = Pick<AttemptsProps, 'onEvent' | 'onItems'> & { run: RunView }

function Run({ run, onEvent, onItems }: RunProps) {
  const more = run.attempts_total === null ? null : run.attempts_total - run.attempts.length
  const hasArgs = run.args !== null && Object.keys(run.args).length > 0
  return (
    <section aria-label={`run ${run.run}`}>
      <div className={styles.bar}>
        <h3>run {formatCount(run.run)}</h3>
        <Status status={run.status} />
        <Elapsed start={run.entered_at} end={run.ended_at ?? (run.status === 'running' ? null : run.entered_at)} />
        <LinkButton onClick={() => onEvent(run.first_seq)}>first event</LinkButton>
      </div>
      {hasArgs && <Values values={run.args ?? {}} />}
      {run.attempts.map((attempt) => (
        <Attempt
          key={`${attempt.command_id} ${attempt.attempt}`}
          attempt={attempt}
          onItems={() => onItems(run.run, attempt)}
        />
      ))}
      {more === null && <p className={styles.faint}>and more: the timeline shows all of them</p>}
      {more !== null && more > 0 && <p className={styles.faint}>and {formatCount(more)} more attempts</p>}
    </section>
  )
}

function Attempt({ attempt, onItems }: { attempt: AttemptView; onItems: () => void }) {
  const start = attempt.started_at ?? attempt.claimed_at
  const isOfLoop = attempt.count > 0
  return (
    <div className={styles.attempt}>
      <Status status={attempt.status} />
      <span>attempt {attempt.attempt}</span>
      {isOfLoop && <LinkButton onClick={onItems}>{formatCommandItems(attempt)}</LinkButton>}
      <span className={styles.faint}>{attempt.worker ?? 'no worker yet'}</span>
      <Clock at={start} />
      {start !== null && <Elapsed start={start} end={attempt.ended_at} />}
      {attempt.error && (
        <span>
          <span className={styles.code}>{attempt.error.code}</span> {attempt.error.message}
        </span>
      )}
    </div>
  )
}

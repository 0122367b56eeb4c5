import { useQuery } from '@tanstack/react-query'
import { askCommands, askResult } from '../api/queries'
import { Empty } from '../parts/Empty'
import { Problem } from '../parts/Problem'
import styles from './Inspector.module.css'
import { listSparkFacts } from './sparkFacts'

interface SparkProps {
  id: string
  step: string
  status: string | null
}

// How far Spark is with the step, and when it has ended, what Spark did for it.
export function Spark({ id, step, status }: SparkProps) {
  if (status === null) return <Empty>The step has not begun.</Empty>
  const isLive = status === 'running' || status === 'waiting'
  return isLive ? <SparkProgress id={id} step={step} /> : <SparkFacts id={id} step={step} />
}

function SparkProgress({ id, step }: { id: string; step: string }) {
  const { data, error, refetch } = useQuery(askCommands(id))
  if (error) return <Problem error={error} again={() => void refetch()} />
  if (data === undefined) return null
  const lines = data.commands.filter((command) => command.step === step && command.progress !== null)
  if (lines.length === 0) return <Empty>Spark has told nothing yet.</Empty>
  return (
    <ul className={styles.body} aria-label="progress">
      {lines.map((command) => (
        <li key={command.command_id}>{command.progress}</li>
      ))}
    </ul>
  )
}

function SparkFacts({ id, step }: { id: string; step: string }) {
  const { data, error, refetch } = useQuery(askResult(id, step))
  if (error) return <Problem error={error} again={() => void refetch()} />
  if (data === undefined) return null
  const facts = listSparkFacts((data.context.spark ?? {}) as Record<string, unknown>)
  if (facts.length === 0) return <Empty>Spark has told nothing of this step.</Empty>
  return (
    <dl className={`${styles.body} ${styles.facts}`}>
      {facts.map(({ name, text }) => (
        <div key={name} className={styles.fact}>
          <dt>{name}</dt>
          <dd>{text}</dd>
        </div>
      ))}
    </dl>
  )
}

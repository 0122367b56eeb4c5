import { CallFailed } from '../api/call'
import { Button } from './Button'
import styles from './Problem.module.css'

// An error where the data would stand: its code, what is wrong, what to do, and a way to try again.
export function Problem({ error, again }: { error: unknown; again?: () => void }) {
  const problem = error instanceof CallFailed ? error.problem : null
  const detail = problem?.detail ?? String(error)
  return (
    <div className={styles.problem} role="alert">
      {problem && <code className={styles.code}>{problem.code}</code>}
      <span>{detail}</span>
      {problem?.hint && <span className={styles.hint}>{problem.hint}</span>}
      {again && <Button onClick={again}>Again</Button>}
    </div>
  )
}

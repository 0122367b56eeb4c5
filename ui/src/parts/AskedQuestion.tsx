import styles from './AskedQuestion.module.css'
import type { Question } from './question'
import { splitQuestion } from './question'

interface AskedQuestionProps {
  question: Question
  // Who has started the execution that asks.
  by: string | null
}

// What an approval asks, and on behalf of whom. It is text of others: shown as text only.
export function AskedQuestion({ question, by }: AskedQuestionProps) {
  const { message, fields } = splitQuestion(question)
  const shown = by === null ? fields : [['asked by', by] as const, ...fields]
  if (message === null && shown.length === 0) return null
  return (
    <div className={styles.question}>
      {message !== null && <p className={styles.message}>{message}</p>}
      {shown.length > 0 && (
        <dl className={styles.fields}>
          {shown.map(([name, value], index) => (
            <div key={index}>
              <dt>{name}</dt>
              <dd>{value}</dd>
            </div>
          ))}
        </dl>
      )}
    </div>
  )
}

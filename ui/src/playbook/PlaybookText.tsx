import { useQuery } from '@tanstack/react-query'
import { useEffect, useRef } from 'react'
import { askPlaybook } from '../api/queries'
import { Problem } from '../parts/Problem'
import styles from './PlaybookText.module.css'

const LINE_PX = 18
const PADDING_PX = 8

// The text that ran, with numbers of its lines; one line can be marked.
export function PlaybookText({ hash, line }: { hash: string; line: number | null }) {
  const { data, error, refetch } = useQuery(askPlaybook(hash))
  if (error) return <Problem error={error} again={() => void refetch()} />
  if (data === undefined) return null
  return <NumberedText text={data.content} line={line} />
}

function NumberedText({ text, line }: { text: string; line: number | null }) {
  const mark = useRef<HTMLDivElement>(null)
  // Newer browsers return a promise, which React would take for a cleanup.
  useEffect(() => void mark.current?.scrollIntoView({ block: 'center' }), [line])
  const count = text.split('\n').length
  const numbers = Array.from({ length: count }, (_, index) => index + 1).join('\n')
  return (
    <div className={styles.text}>
      {line !== null && (
        <div ref={mark} className={styles.mark} style={{ top: PADDING_PX + (line - 1) * LINE_PX }} aria-label={`line ${line}`} role="img" />
      )}
      <pre className={styles.numbers} aria-hidden="true">
        {numbers}
      </pre>
      <pre>{text}</pre>
    </div>
  )
}

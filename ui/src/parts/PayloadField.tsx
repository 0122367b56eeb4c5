import styles from './WaitActions.module.css'

interface PayloadFieldProps {
  label: string
  text: string
  problem: string | null
  onChange: (text: string) => void
}

// A field for JSON, or for lines of `name: value`; it says what is wrong while it is typed.
export function PayloadField({ label, text, problem, onChange }: PayloadFieldProps) {
  return (
    <label className={styles.field}>
      {label}
      <textarea
        className={styles.code}
        spellCheck={false}
        value={text}
        aria-invalid={problem !== null}
        onChange={(event) => onChange(event.target.value)}
      />
      <span className={problem === null ? styles.fine : styles.problem} role="status">
        {problem ?? 'JSON, or a line of “name: value” per key'}
      </span>
    </label>
  )
}

import { formatBytes } from './format'
import { describeValue } from './values'
import styles from './Value.module.css'

// A value as JSON. It is shown as text only.
export function Value({ value }: { value: unknown }) {
  const { text, cutBytes } = describeValue(value)
  if (text === null) return <span className={styles.none}>none</span>
  return (
    <pre className={styles.value}>
      {text}
      {cutBytes > 0 && <span className={styles.cut}>{`\n… ${formatBytes(cutBytes)} more`}</span>}
    </pre>
  )
}

// Names with their values, one below the other.
export function Values({ values }: { values: Record<string, unknown> }) {
  return (
    <dl className={styles.list}>
      {Object.entries(values).map(([name, value]) => (
        <div key={name} style={{ display: 'contents' }}>
          <dt>{name}</dt>
          <dd>
            <Value value={value} />
          </dd>
        </div>
      ))}
    </dl>
  )
}

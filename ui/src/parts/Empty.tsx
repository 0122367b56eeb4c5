import type { ReactNode } from 'react'
import { CopyButton } from './Copy'
import styles from './Empty.module.css'

// What stands where there is nothing yet: a sentence, and the command that changes it.
export function Empty({ children, command }: { children: ReactNode; command?: string }) {
  return (
    <div className={styles.empty}>
      <p>{children}</p>
      {command && (
        <p className={styles.command}>
          <code>{command}</code>
          <CopyButton text={command} label="copy the command" />
        </p>
      )}
    </div>
  )
}

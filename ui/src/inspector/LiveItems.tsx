import type { LiveCommandView } from '../api/types'
import { formatCount, formatCommandItems } from '../parts/format'
import { Status } from '../parts/Status'
import styles from './Inspector.module.css'
import { ChildLinks } from './ItemRow'

const MAX_SHOWN = 5

// Items that have not ended have no results yet. Their commands say where they are.
export function LiveItems({ commands }: { commands: LiveCommandView[] }) {
  if (commands.length === 0) return null
  const more = commands.length - MAX_SHOWN
  return (
    <ul className={styles.kinds} aria-label="items under way">
      {commands.slice(0, MAX_SHOWN).map((command) => (
        <li key={command.command_id} className={styles.kind}>
          <Status status={command.waits === null ? 'running' : 'waiting'} />
          <span>{formatCommandItems(command)}</span>
          <span className={styles.faint}>{command.worker ?? ''}</span>
          <ChildLinks ids={command.waits?.child ? [command.waits.child] : []} />
        </li>
      ))}
      {more > 0 && <li className={styles.faint}>and {formatCount(more)} more commands under way</li>}
    </ul>
  )
}

import { useQuery } from '@tanstack/react-query'
import type { PageView } from '../api/types'
import { askWorkload } from '../api/queries'
import { formatBytes } from '../parts/format'
import { Problem } from '../parts/Problem'
import { Values } from '../parts/Value'
import styles from './Inspector.module.css'

// Variables as they were at the event that is shown, the workload, and the state of the playbook.
export function Vars({ view }: { view: PageView }) {
  const { data: workload, error } = useQuery(askWorkload(view.execution_id))
  const hasVariables = view.ctx !== null && Object.keys(view.ctx).length > 0
  const states = Object.entries(view.state).map(([name, use]) => [name, use.unset ? 'not set' : use.value] as const)
  return (
    <div className={styles.body}>
      <section aria-label="variables">
        <h3>variables</h3>
        {view.ctx === null && <p className={styles.faint}>{formatBytes(view.ctx_bytes)}: too large to show</p>}
        {view.ctx !== null && !hasVariables && <p className={styles.faint}>none is set</p>}
        {hasVariables && <Values values={view.ctx ?? {}} />}
      </section>
      <section aria-label="workload">
        <h3>workload</h3>
        {error && <Problem error={error} />}
        {workload && <Values values={workload} />}
      </section>
      {states.length > 0 && (
        <section aria-label="state">
          <h3>state of the playbook</h3>
          <Values values={Object.fromEntries(states)} />
        </section>
      )}
    </div>
  )
}

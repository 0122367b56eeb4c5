import type { GraphView } from '../api/types'
import { formatDuration } from '../parts/format'
import { Status } from '../parts/Status'
import styles from './ExecutionPage.module.css'
import type { PageState } from './page'
import { describeStep } from './summary'

// The steps as a list, in the order of the playbook: the same as the graph says, for keyboards, readers and phones.
export function Steps({ state, graph, onSelect }: { state: PageState; graph: GraphView | undefined; onSelect: (step: string) => void }) {
  const { view, selection } = state
  const names = graph?.steps.map((step) => step.name) ?? Object.keys(view.steps)
  return (
    <ul className={styles.steps} aria-label="steps">
      {names.map((name) => {
        const step = view.steps[name]
        return (
          <li key={name}>
            <button type="button" className={styles.step} aria-current={name === selection.step} onClick={() => onSelect(name)}>
              <span className={styles.stepName}>{name}</span>
              <Status status={step?.status ?? 'not_reached'} />
              <span className={styles.stepWhat}>{step ? describeStep(step) : ''}</span>
              <span className={styles.right}>{step?.seconds == null ? '' : formatDuration(step.seconds * 1000)}</span>
            </button>
          </li>
        )
      })}
    </ul>
  )
}

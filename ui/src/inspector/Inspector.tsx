import { Tabs } from '@base-ui/react/tabs'
import type { ReactNode } from 'react'
import { IconButton } from '../parts/Button'
import { formatCount } from '../parts/format'
import { Status } from '../parts/Status'
import styles from './Inspector.module.css'

export interface InspectorTab {
  name: string
  label: string
  content: () => ReactNode
}

interface InspectorProps {
  tabs: InspectorTab[]
  active: string
  onTab: (name: string) => void
  why: ReactNode
}

// The reasons, then one tab of what is known of the step. A tab is made when it is opened.
export function Inspector({ tabs, active, onTab, why }: InspectorProps) {
  const shown = tabs.some((tab) => tab.name === active) ? active : tabs[0]?.name
  return (
    <div className={styles.inspector}>
      {why}
      <Tabs.Root value={shown ?? null} onValueChange={(value) => onTab(String(value))}>
        <Tabs.List className={styles.list} aria-label="about the step">
          {tabs.map((tab) => (
            <Tabs.Tab key={tab.name} value={tab.name} className={styles.tab}>
              {tab.label}
            </Tabs.Tab>
          ))}
        </Tabs.List>
        {tabs.map((tab) => (
          <Tabs.Panel key={tab.name} value={tab.name} className={styles.panel} tabIndex={0}>
            {tab.name === shown && tab.content()}
          </Tabs.Panel>
        ))}
      </Tabs.Root>
    </div>
  )
}

interface StepHeadProps {
  step: string
  status: string
  run: number | null
  runs: number
  kinds: string[]
  item: number | null
  onRun: (run: number | null) => void
  onItem: (item: number | null) => void
}

// ◆ score · run 1 of 1 · python, loop
export function StepHead({ step, status, run, runs, kinds, item, onRun, onItem }: StepHeadProps) {
  const shown = run ?? runs
  return (
    <div className={styles.head}>
      <Status status={status} word={step} />
      <span className={styles.faint}>{status.replaceAll('_', ' ')}</span>
      {runs > 0 && (
        <span className={`${styles.runs} ${styles.faint}`}>
          run {formatCount(shown)} of {formatCount(runs)}
          {runs > 1 && (
            <>
              <IconButton icon="chevronLeft" label="run before" disabled={shown <= 1} onClick={() => onRun(shown - 1)} />
              <IconButton icon="chevronRight" label="next run" disabled={shown >= runs} onClick={() => onRun(shown + 1)} />
            </>
          )}
        </span>
      )}
      <span className={styles.faint}>{kinds.join(', ')}</span>
      {item !== null && (
        <span className={styles.runs}>
          item {formatCount(item)}
          <IconButton icon="close" label="all items" onClick={() => onItem(null)} />
        </span>
      )}
    </div>
  )
}

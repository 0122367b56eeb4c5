import type { ReactNode } from 'react'
import type { GraphView } from '../api/types'
import { Attempts } from '../inspector/Attempts'
import { Data } from '../inspector/Data'
import type { InspectorTab } from '../inspector/Inspector'
import { Inspector, StepHead } from '../inspector/Inspector'
import { Lineage } from '../inspector/Lineage'
import { Spark } from '../inspector/Spark'
import { Vars } from '../inspector/Vars'
import { Logs } from '../logs/Logs'
import { Empty } from '../parts/Empty'
import { Pane } from '../parts/Pane'
import { PlaybookText } from '../playbook/PlaybookText'
import { Preview } from '../preview/Preview'
import { Why } from '../why/Why'
import type { Tab } from './cursor'
import { selectStep, showCommandItems, TABS } from './cursor'
import styles from './ExecutionPage.module.css'
import { ItemsTab } from './ItemsTab'
import type { PageState } from './page'
import { useRestingSeq } from './page'

const LABELS: Record<Tab, string> = {
  items: 'Items',
  data: 'Input·Output',
  vars: 'Vars',
  logs: 'Logs',
  attempts: 'Attempts',
  spark: 'Spark',
  lineage: 'Lineage',
  playbook: 'Playbook',
}

// Tabs that show the state at the time cursor, or what is the same at any time.
const FOLLOW_TIME: ReadonlySet<Tab> = new Set(['vars', 'logs', 'playbook'])

function Newest({ children }: { children: ReactNode }) {
  return (
    <>
      <p className={styles.newest}>The newest state, not that of the event.</p>
      {children}
    </>
  )
}

interface InspectorPaneProps {
  state: PageState
  graph: GraphView | undefined
}

// Everything about the selected step: the page puts the subjects into the tabs.
export function InspectorPane({ state, graph }: InspectorPaneProps) {
  const { id, view, search, selection, showEvent, go } = state
  const { step, run, item } = selection
  const shownSeq = useRestingSeq(state)
  if (step === null) {
    return (
      <Pane name="step" className={styles.inspector}>
        <Empty>No step has begun.</Empty>
      </Pane>
    )
  }
  const status = view.steps[step]
  const kinds = graph?.steps.find((each) => each.name === step)?.kinds ?? []
  const hasBegun = run !== null && run <= (status?.runs ?? 0)
  const loop = status?.loop != null
  const names = listTabs(loop, kinds)
  const contents = makeContents(state, step)
  const isPast = search.at !== undefined
  const tabs = names.map((name): InspectorTab => {
    const isNewest = isPast && !FOLLOW_TIME.has(name)
    return { name, label: LABELS[name], content: isNewest ? () => <Newest>{contents[name]()}</Newest> : contents[name] }
  })
  const active = search.tab ?? (loop && item !== null ? 'items' : (names[0] ?? 'data'))
  const head = (
    <StepHead
      step={step}
      status={status?.status ?? 'not_reached'}
      run={run}
      runs={status?.runs ?? 0}
      kinds={loop ? [...kinds, 'loop'] : kinds}
      item={item}
      onRun={(next) => go({ step, run: next ?? undefined, item: undefined })}
      onItem={(next) => go({ step, item: next ?? undefined })}
    />
  )
  return (
    <Pane name="step" head={head} className={styles.inspector}>
      <Inspector
        key={`${step} ${run ?? ''}`}
        tabs={tabs}
        active={active}
        onTab={(name) => go({ tab: name as Tab }, true)}
        why={
          <Why
            id={id}
            step={step}
            at={shownSeq}
            run={hasBegun ? run : null}
            onEvent={(seq) => showEvent({ seq })}
            onLine={(line) => go({ tab: 'playbook', line }, true)}
            onStep={(name) => go(selectStep(search, name))}
          />
        }
      />
    </Pane>
  )
}

// Tabs that say nothing of this step are left out. The number keys keep their meaning.
export function listTabs(isLoop: boolean, kinds: readonly string[]): Tab[] {
  return TABS.filter((tab) => {
    if (tab === 'items') return isLoop
    if (tab === 'spark') return kinds.includes('spark')
    return true
  })
}

function makeContents(state: PageState, step: string): Record<Tab, () => ReactNode> {
  const { id, view, search, selection, showEvent, go } = state
  const { run, item } = selection
  return {
    items: () => <ItemsTab state={state} step={step} />,
    data: () => (
      <Data id={id} step={step} run={run} item={item} preview={(reference) => <Preview id={id} reference={reference} />} />
    ),
    vars: () => <Vars view={view} />,
    logs: () => <Logs id={id} step={step} item={item} />,
    attempts: () => (
      <Attempts
        id={id}
        step={step}
        onEvent={(seq) => showEvent({ seq })}
        onItems={(of, items) => go(showCommandItems(search, step, of, items))}
      />
    ),
    spark: () => <Spark id={id} step={step} status={view.steps[step]?.status ?? null} />,
    lineage: () => <Lineage id={id} step={step} item={item} />,
    playbook: () =>
      view.playbook === null ? (
        <Empty>The text is not known.</Empty>
      ) : (
        <PlaybookText hash={view.playbook} line={search.line ?? null} />
      ),
  }
}

import { Link } from '@tanstack/react-router'
import { CopyAsCli, CopyButton } from '../parts/Copy'
import { formatCount, formatNoun, formatOffset, shortenId } from '../parts/format'
import { Elapsed } from '../parts/Moment'
import { Status } from '../parts/Status'
import { describeStatus } from '../parts/tone'
import { Actions } from './Actions'
import styles from './ExecutionPage.module.css'
import type { PageState } from './page'
import { findAwaitingStep, makePageCommand, summarizeItems } from './summary'

export function Header({ state }: { state: PageState }) {
  const { id, view, search } = state
  const items = summarizeItems(view)
  const end = search.at === undefined ? view.ended_at : view.at
  return (
    <header className={styles.header}>
      <h1 className={styles.title}>
        <Status {...describeStatus(view.status, findAwaitingStep(view) !== null)} />
        <Link to="/executions" search={{ path: view.path }} title="executions of this playbook">
          {view.path}
        </Link>
        {view.version !== null && <span className={styles.version}>v{view.version}</span>}
      </h1>
      <div className={styles.facts}>
        <span className={styles.id} title={id}>
          {shortenId(id)}
          <CopyButton text={id} label="copy the id" />
        </span>
        <Elapsed start={view.started_at} end={end} />
        {items && <span>{items}</span>}
        <span>{formatNoun(view.events, 'event')}</span>
        {view.by && <span>{view.by}</span>}
        <Relations state={state} />
      </div>
      {search.at !== undefined && (
        <span className={styles.asOf} role="status">
          as of event {formatCount(view.number)}
          {view.at && `, ${formatOffset(view.at, view.started_at)}`}
        </span>
      )}
      <div className={styles.actions}>
        <CopyAsCli command={makePageCommand(id, search, state.selection.step, view.number)} />
        <Actions state={state} />
      </div>
    </header>
  )
}

function Relations({ state }: { state: PageState }) {
  const { parent, retry_of: retryOf, retried_by: retriedBy, from_step: fromStep, children } = state.view
  const newest = retriedBy.at(-1)
  return (
    <>
      {parent && (
        <Link to="/executions/$id" params={{ id: parent }}>
          child of {shortenId(parent)}
        </Link>
      )}
      {retryOf && (
        <Link to="/executions/$id" params={{ id: retryOf }}>
          {fromStep ? `rerun from ${fromStep} of` : 'repeats'} {shortenId(retryOf)}
        </Link>
      )}
      {newest && (
        <Link to="/executions/$id" params={{ id: newest }}>
          repeated by {shortenId(newest)}
          {retriedBy.length > 1 && ` and ${retriedBy.length - 1} more`}
        </Link>
      )}
      {children.total > 0 && <ChildrenFact state={state} />}
    </>
  )
}

function ChildrenFact({ state }: { state: PageState }) {
  const { children } = state.view
  const [first] = children.newest
  const text = formatNoun(children.total, 'child', 'children')
  const isOne = children.total === 1 && first !== undefined
  return isOne ? (
    <Link to="/executions/$id" params={{ id: first.execution_id }}>
      child {shortenId(first.execution_id)}
    </Link>
  ) : (
    <Link to="/executions" search={{ parent: state.id }}>
      {text}
      {children.counts.failed ? `, ${formatCount(children.counts.failed)} failed` : ''}
    </Link>
  )
}

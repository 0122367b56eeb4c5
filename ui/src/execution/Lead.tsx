import { useQuery } from '@tanstack/react-query'
import { Link } from '@tanstack/react-router'
import type { ReactNode } from 'react'
import type { PageFailureView, ResultReferenceView } from '../api/types'
import { askLogs, askReference } from '../api/queries'
import { AskedQuestion } from '../parts/AskedQuestion'
import { IconButton, LinkButton } from '../parts/Button'
import { formatBytes, formatCount, formatNoun } from '../parts/format'
import { ShapeIcon, Status } from '../parts/Status'
import type { Tone } from '../parts/tone'
import { hasEnded } from '../parts/tone'
import { WaitActions } from '../parts/WaitActions'
import { usePlaybookGraph } from './hooks'
import styles from './Lead.module.css'
import type { PageState } from './page'
import { isSmallResult, MAX_SMALL_ROWS, summarizeResult } from './smallResult'
import { chooseFailure, describeLoop, describeWait, findAwaitingStep, findOwnKind } from './summary'

const SHOWN_LOG_LINES = 3

// What a person wants to know first: the failure; else what waits for a person; else what runs; else the result.
export function Lead({ state }: { state: PageState }) {
  const { view } = state
  if (view.failure !== null) return <Failure state={state} failure={view.failure} />
  const awaiting = findAwaitingStep(view)
  if (awaiting !== null) return <Waiting state={state} step={awaiting} />
  if (view.status === 'paused' || view.status === 'quarantined') return <SetAside state={state} />
  if (!hasEnded(view.status)) return <Running state={state} />
  return <Result state={state} />
}

function Strip({ tone, label, children, side }: { tone: Tone; label: string; children: ReactNode; side?: ReactNode }) {
  return (
    <section className={`${styles.lead} ${styles[tone] ?? ''}`} aria-label={label}>
      <div>{children}</div>
      <div className={styles.side}>{side}</div>
    </section>
  )
}

function Failure({ state, failure }: { state: PageState; failure: PageFailureView }) {
  const { id, view, selection, showEvent, go } = state
  const kinds = view.failures.kinds
  const { kind: index, code, message, step, item, seq } = chooseFailure(failure, kinds, selection)
  const show = (position: number) => {
    const next = kinds[(position + kinds.length) % kinds.length]
    if (next !== undefined) go({ step: next.step, item: next.first.item ?? undefined, run: undefined, tab: undefined })
  }
  const isOwn = failure.execution_id === id
  const { data: graph } = usePlaybookGraph(view.playbook)
  const isFirst = index === findOwnKind(failure, kinds)
  const stepLine = graph?.steps.find((each) => each.name === step)?.line ?? null
  const line = isOwn ? (isFirst ? failure.line : stepLine) : null
  return (
    <Strip
      tone="failed"
      label="failure"
      side={
        <>
          {kinds.length > 0 && (
            <span>
              {formatNoun(kinds.length, 'kind')}, {formatNoun(view.failures.total, 'failure')}
            </span>
          )}
          {kinds.length > 1 && (
            <span>
              <IconButton icon="chevronLeft" label="kind before" onClick={() => show(index - 1)} />
              <IconButton icon="chevronRight" label="next kind" onClick={() => show(index + 1)} />
            </span>
          )}
          {line !== null && <LinkButton onClick={() => go({ tab: 'playbook', line })}>show in playbook, line {line}</LinkButton>}
          <LastLines
            id={failure.execution_id}
            step={step}
            item={item}
            onLogs={isOwn ? () => go({ step: step ?? undefined, item: item ?? undefined, run: undefined, tab: 'logs' }) : null}
          />
        </>
      }
    >
      <div className={styles.line}>
        <ShapeIcon shape="diamond" tone="failed" />
        <span className={styles.code}>{code}</span>
        {step && isOwn && (
          <span>
            at <LinkButton onClick={() => go({ step, item: item ?? undefined, run: undefined })}>{step}</LinkButton>
          </span>
        )}
        {!isOwn && (
          <Link to="/executions/$id" params={{ id: failure.execution_id }}>
            {step === null ? '' : `at ${step} `}in the child {failure.path}
          </Link>
        )}
        {item !== null && <span>item {formatCount(item)}</span>}
        {seq !== null && <LinkButton onClick={() => showEvent({ seq })}>show its event</LinkButton>}
      </div>
      <p className={styles.message}>{message}</p>
    </Strip>
  )
}

interface LastLinesProps {
  id: string
  step: string | null
  item: number | null
  // Shows all of them; null: they are those of another execution.
  onLogs: (() => void) | null
}

function LastLines({ id, step, item, onLogs }: LastLinesProps) {
  const filter = { step: step ?? undefined, item: item ?? undefined, tail: SHOWN_LOG_LINES }
  const { data } = useQuery({ ...askLogs(id, filter), enabled: step !== null })
  const lines = data?.slice(-SHOWN_LOG_LINES) ?? []
  if (lines.length === 0) return null
  const label = item === null ? 'last log lines' : `last log lines of item ${formatCount(item)}`
  return (
    <div className={styles.logBox}>
      {onLogs === null ? label : <LinkButton onClick={onLogs}>{label}</LinkButton>}
      <ul className={styles.logs} aria-label="last log lines">
        {lines.map((line) => (
          <li key={`${line.part}-${line.seq}`} title={line.line}>
            {line.line}
          </li>
        ))}
      </ul>
    </div>
  )
}

function Waiting({ state, step }: { state: PageState; step: string }) {
  const { id, view, search, go } = state
  const wait = view.steps[step]?.waits
  if (!wait) return null
  const isNow = search.at === undefined
  const by = wait.on === 'approval' ? view.by : null
  const actions = <WaitActions executionId={id} on={wait.on} step={step} name={wait.name} question={wait.question} by={by} />
  return (
    <Strip tone="waiting" label="waits for you" side={isNow ? actions : null}>
      <div className={styles.line}>
        <Status status="waiting" word="waits for you" />
        <LinkButton onClick={() => go({ step, run: undefined, item: undefined })}>{step}</LinkButton>
        <span>{describeWait(wait)}</span>
      </div>
      <AskedQuestion question={wait.question} by={by} />
    </Strip>
  )
}

function SetAside({ state }: { state: PageState }) {
  const { id, view, search } = state
  const isNow = search.at === undefined
  const actions = <WaitActions executionId={id} on={view.status} step={null} name={null} />
  return (
    <Strip tone={view.status === 'paused' ? 'waiting' : 'failed'} label={view.status} side={isNow ? actions : null}>
      <div className={styles.line}>
        <Status status={view.status} />
        <span>{view.error ?? 'Running commands finish, and nothing more is started.'}</span>
      </div>
    </Strip>
  )
}

function Running({ state }: { state: PageState }) {
  const { view, go } = state
  const steps = Object.entries(view.steps).filter(([, step]) => step.status === 'running' || step.status === 'waiting')
  return (
    <Strip tone="running" label="what runs now" side={<span>{formatNoun(view.live_total, 'command')} under way</span>}>
      {steps.length === 0 && <Status status={view.status} />}
      {steps.slice(0, 3).map(([name, step]) => (
        <div className={styles.line} key={name}>
          <Status status={step.status} />
          <LinkButton onClick={() => go({ step: name, run: undefined, item: undefined })}>{name}</LinkButton>
          <span>{step.waits ? describeWait(step.waits) : describeLoop(step)}</span>
        </div>
      ))}
    </Strip>
  )
}

function Result({ state }: { state: PageState }) {
  const { view, go } = state
  const { result, result_step: step } = view
  const tone = view.status === 'completed' ? 'completed' : 'idle'
  return (
    <Strip tone={tone} label="result">
      <div className={styles.line}>
        <Status status={view.status} />
        {step && (
          <span>
            result of <LinkButton onClick={() => go({ step, tab: 'data', run: undefined, item: undefined })}>{step}</LinkButton>
          </span>
        )}
        {result && (
          <span>
            {result.rows === null ? '' : `${formatNoun(result.rows, 'row')}, `}
            {result.bytes === null ? '' : formatBytes(result.bytes)}
          </span>
        )}
        {view.recovered > 0 && <span>recovered from {formatNoun(view.recovered, 'failure')}</span>}
        {view.error && <span>{view.error}</span>}
      </div>
      {result && isSmallResult(result) && <SmallResult id={view.execution_id} reference={result} />}
    </Strip>
  )
}

// A result that fits into a line is shown, not only named.
function SmallResult({ id, reference }: { id: string; reference: ResultReferenceView }) {
  const { data } = useQuery(askReference(id, reference.ref_id, 0, MAX_SMALL_ROWS))
  const text = data?.preview ? summarizeResult(data.preview) : null
  if (text === null) return null
  return (
    <p className={styles.value} aria-label="value of the result" title={text}>
      {text}
    </p>
  )
}

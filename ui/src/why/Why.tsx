import { useQuery } from '@tanstack/react-query'
import { Link } from '@tanstack/react-router'
import type { ReactNode } from 'react'
import type { Cause } from '../api/messages'
import { askExplanation } from '../api/queries'
import type { ExplanationView } from '../api/types'
import { LinkButton } from '../parts/Button'
import { formatCount, formatDate, formatNoun, shortenId } from '../parts/format'
import { Age } from '../parts/Moment'
import { Problem } from '../parts/Problem'
import { describeQuestion } from '../parts/question'
import { summarizeValue } from '../parts/values'
import styles from './Why.module.css'

const MAX_CAUSES = 12

interface WhyProps {
  id: string
  step: string
  at: number | null
  run: number | null
  onEvent: (seq: number) => void
  onLine: (line: number) => void
  onStep: (step: string) => void
}

interface Links extends Pick<WhyProps, 'onEvent' | 'onLine' | 'onStep'> {
  // The numbers of the events, by their place in the log.
  numbers: ReadonlyMap<number, number>
}

// Why the step ran, did not run, or waits: the most direct cause first.
export function Why({ id, step, at, run, ...actions }: WhyProps) {
  const { data, error } = useQuery(askExplanation(id, step, at, run))
  if (error) return <Problem error={error} />
  if (data === undefined) return null
  const links = { ...actions, numbers: readNumbers(data) }
  const untried = listUntried(data.causes)
  const told = untried.length > 1 ? data.causes.filter((cause) => !isUntried(cause)) : data.causes
  const causes = told.slice(0, MAX_CAUSES)
  const more = told.length - causes.length
  return (
    <section className={styles.why} aria-label="why">
      <h3>why</h3>
      {causes.map((cause, index) => (
        <div className={styles.cause} key={index}>
          {describeCause(cause, links)}
        </div>
      ))}
      {untried.length > 1 && (
        <div className={styles.cause}>
          not tried: → <StepLinks steps={untried} links={links} />
        </div>
      )}
      {more > 0 && <p className={styles.faint}>and {formatCount(more)} more</p>}
      {causes.length === 0 && data.because.map((text) => <p key={text}>{text}</p>)}
    </section>
  )
}

function isUntried(cause: Cause): boolean {
  return cause.kind === 'arc' && cause.from === null && cause.verdict === 'untried'
}

// Where arcs of the step lead that were not looked at: one line for all of them.
function listUntried(causes: readonly Cause[]): string[] {
  const steps = causes.filter(isUntried).map((cause) => (cause.kind === 'arc' ? cause.to : ''))
  return [...new Set(steps)]
}

function readNumbers({ causes, numbers }: ExplanationView): ReadonlyMap<number, number> {
  const known = new Map<number, number>()
  causes.forEach((cause, index) => {
    const number = numbers[index]
    if ('seq' in cause && cause.seq != null && number != null) known.set(cause.seq, number)
  })
  return known
}

function EventLink({ seq, links }: { seq: number | null; links: Links }) {
  if (seq === null) return null
  const number = links.numbers.get(seq)
  return <LinkButton onClick={() => links.onEvent(seq)}>event{number === undefined ? '' : ` ${formatCount(number)}`}</LinkButton>
}

function LineLink({ line, links }: { line: number | null; links: Links }) {
  if (line === null) return null
  return <LinkButton onClick={() => links.onLine(line)}>line {line}</LinkButton>
}

function StepLink({ step, links }: { step: string; links: Links }) {
  return <LinkButton onClick={() => links.onStep(step)}>{step}</LinkButton>
}

function StepLinks({ steps, links }: { steps: string[]; links: Links }) {
  return (
    <>
      {steps.map((step) => (
        <StepLink key={step} step={step} links={links} />
      ))}
    </>
  )
}

function InheritedCause({ from }: { from: string | null }) {
  if (from === null) return <>inherited</>
  return (
    <>
      inherited from{' '}
      <Link to="/executions/$id" params={{ id: from }}>
        {shortenId(from)}
      </Link>
    </>
  )
}

function Saw({ values }: { values: Record<string, unknown> | null }) {
  const entries = Object.entries(values ?? {})
  if (entries.length === 0) return null
  return <span className={styles.saw}>saw {entries.map(([name, value]) => `${name} = ${summarizeValue(value, 60)}`).join(', ')}</span>
}

function describeCause(cause: Cause, links: Links): ReactNode {
  switch (cause.kind) {
    case 'reached':
      return (
        <>
          {cause.from.length === 0 ? 'the execution begins here' : <>reached from <StepLinks steps={cause.from} links={links} /></>}
          <EventLink seq={cause.seq} links={links} />
        </>
      )
    case 'arc':
      return <ArcCause cause={cause} links={links} />
    case 'items':
      return <ItemsCause cause={cause} />
    case 'waits':
      return <WaitCause cause={cause} />
    case 'held':
      return (
        <>
          held back: <StepLinks steps={cause.by} links={links} /> can still reach it
        </>
      )
    case 'works':
      return <>a worker has its {cause.what}</>
    case 'admit':
      return (
        <>
          decided by {cause.rule === null ? 'its default' : `rule ${cause.rule + 1}`} of `admit`
          <LineLink line={cause.line} links={links} />
        </>
      )
    case 'inherited':
      return <InheritedCause from={cause.from} />
    case 'failed':
      return (
        <>
          <span className={styles.message} title={cause.message}>
            <code className={styles.error}>{cause.code}</code> {cause.message}
          </span>
          <LineLink line={cause.line} links={links} />
          <EventLink seq={cause.seq} links={links} />
        </>
      )
    case 'recovered':
      return (
        <>
          recovered by {cause.by} from <code>{cause.code}</code> {cause.count > 1 && `(${formatCount(cause.count)})`} {cause.message}
        </>
      )
    case 'ended':
      return <>the execution {cause.how}</>
    case 'not_reached':
      return (
        <>
          not reached: {cause.reason} <StepLinks steps={cause.from} links={links} />
        </>
      )
  }
}

const VERDICT_LOOKS: Record<string, string | undefined> = { taken: styles.taken, false: styles.false, error: styles.error }

function ArcCause({ cause, links }: { cause: Extract<Cause, { kind: 'arc' }>; links: Links }) {
  return (
    <>
      {cause.from !== null && <StepLink step={cause.from} links={links} />}
      → <StepLink step={cause.to} links={links} />
      <span className={VERDICT_LOOKS[cause.verdict]}>{cause.verdict}</span>
      {cause.when && <code className={styles.when}>{cause.when}</code>}
      <Saw values={cause.saw} />
      {cause.error && <span className={styles.error}>{cause.error}</span>}
      <LineLink line={cause.line} links={links} />
      <EventLink seq={cause.seq} links={links} />
    </>
  )
}

function ItemsCause({ cause }: { cause: Extract<Cause, { kind: 'items' }> }) {
  const total = cause.total === null ? '' : ` of ${formatCount(cause.total)}`
  if (cause.failed === 0) return <>no item{total} failed</>
  return (
    <>
      {formatCount(cause.failed)}
      {total} items failed
      {cause.kinds.length > 1 && <span className={styles.faint}>in {formatNoun(cause.kinds.length, 'kind')}</span>}
    </>
  )
}

function describeWaited(cause: Extract<Cause, { kind: 'waits' }>): string {
  switch (cause.on) {
    case 'approval':
      return 'an approval'
    case 'child':
      return 'a child execution'
    case 'worker':
      return 'a worker'
    case 'place':
      return 'a free place'
    case 'retry':
      return 'its next try'
    case 'resume':
      return 'somebody who resumes the execution'
    default:
      return `the ${cause.on} ${cause.name ?? ''}`.trim()
  }
}

function WaitCause({ cause }: { cause: Extract<Cause, { kind: 'waits' }> }) {
  const asked = describeQuestion(cause.question)
  return (
    <>
      waits for {describeWaited(cause)}
      {cause.by && <span className={styles.faint}>asked by {cause.by}</span>}
      {asked !== '' && <span className={styles.saw}>{asked}</span>}
      {cause.since && (
        <span className={styles.faint}>
          since <Age at={cause.since} />
        </span>
      )}
      {cause.until && <span className={styles.faint}>until {formatDate(cause.until)}</span>}
      {cause.child && (
        <Link to="/executions/$id" params={{ id: cause.child }}>
          {shortenId(cause.child)}
        </Link>
      )}
      {cause.pool && (
        <span className={cause.workers === 0 ? styles.error : styles.faint}>
          pool {cause.pool}
          {cause.workers === null ? '' : `, ${formatCount(cause.workers)} workers`}
        </span>
      )}
    </>
  )
}

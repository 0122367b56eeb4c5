import { useQuery } from '@tanstack/react-query'
import type { ReactNode } from 'react'
import { askData } from '../api/queries'
import { readReference, readText } from '../api/references'
import type { ResultReferenceView, ShownDataView, ShownOutputView } from '../api/types'
import { Problem } from '../parts/Problem'
import { Status } from '../parts/Status'
import { Value } from '../parts/Value'
import { isEmptySide } from './dataSides'
import styles from './Inspector.module.css'

interface DataProps {
  id: string
  step: string
  run: number | null
  item: number | null
  preview: (reference: ResultReferenceView) => ReactNode
}

// Input beside output, of the run or of one item.
export function Data({ id, step, run, item, preview }: DataProps) {
  const { data, error, refetch } = useQuery(askData(id, step, run, item))
  if (error) return <Problem error={error} again={() => void refetch()} />
  if (data === undefined) return null
  const { input, output } = data
  const hasInput = !isEmptySide(input)
  return (
    <div className={styles.body}>
      <div className={styles.sides}>
        {hasInput && <Side name="input" side={input} preview={preview} />}
        <Side name="output" side={output} preview={preview}>
          {output.status !== null && <Ending output={output} />}
        </Side>
      </div>
      {!hasInput && <p className={styles.faint}>It was given no input.</p>}
    </div>
  )
}

interface SideProps {
  name: string
  side: ShownDataView
  preview: DataProps['preview']
  children?: ReactNode
}

function Side({ name, side, preview, children }: SideProps) {
  const { reference, value, cut } = side
  const isEmpty = isEmptySide(side)
  return (
    <section className={styles.side} aria-label={name}>
      <h3>{name}</h3>
      {children}
      {reference !== null && preview(readReference(reference))}
      {reference === null && value != null && <Value value={value} />}
      {reference === null && cut && <p className={styles.faint}>cut: this is its beginning</p>}
      {isEmpty && !children && <p className={styles.faint}>none</p>}
    </section>
  )
}

function Ending({ output }: { output: ShownOutputView }) {
  return (
    <>
      <Status status={output.status ?? ''} />
      {output.error && <Failure error={output.error} />}
    </>
  )
}

function Failure({ error }: { error: Record<string, unknown> }) {
  const detail = error.detail as Record<string, unknown> | undefined
  const trace = readText(detail?.trace)
  return (
    <>
      <p>
        <span className={styles.code}>{readText(error.code)}</span> {readText(error.message)}
      </p>
      {trace !== null && <pre className={styles.trace}>{trace}</pre>}
    </>
  )
}

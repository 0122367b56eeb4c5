import { memo } from 'react'
import type { Node, NodeProps } from '@xyflow/react'
import type { GraphStepView, PageStepView } from '../api/types'
import { ShapeIcon } from '../parts/Status'
import { describeStep, type Meter } from './facts'
import styles from './Graph.module.css'

export interface StepNodeData extends Record<string, unknown> {
  step: GraphStepView
  view: PageStepView | undefined
  isSelected: boolean
  isSimple: boolean
}

export type StepNodeType = Node<StepNodeData, 'step'>

// A step of the graph. One of many is a single element: its name and the shape of its status.
export const StepNode = memo(function StepNode({ data }: NodeProps<StepNodeType>) {
  const { step, view, isSelected, isSimple } = data
  const facts = describeStep(step, view)
  const { tone, shape, word } = facts.look
  const selected = isSelected ? styles.selected : ''
  const reached = facts.isReached ? '' : styles.notReached
  const className = `${styles.step} ${styles[tone]} ${reached} ${selected}`
  if (isSimple) {
    return (
      <div className={`${className} ${styles.simple}`} data-shape={shape}>
        {step.name}
      </div>
    )
  }
  return (
    <div className={className}>
      <div className={styles.name}>
        <ShapeIcon shape={shape} />
        <span>{step.name}</span>
      </div>
      <div className={styles.line}>
        <span className={styles.word}>{word}</span>
        {facts.kinds !== '' && ` · ${facts.kinds}`}
      </div>
      <div className={styles.line}>{facts.detail}</div>
      {facts.meter !== null && <LoopMeter meter={facts.meter} />}
    </div>
  )
}, hasSameData)

// A live execution changes a few steps at a time; the others are not drawn again.
function hasSameData({ data: before }: NodeProps<StepNodeType>, { data: after }: NodeProps<StepNodeType>): boolean {
  const isSameStep = before.step === after.step && before.view === after.view
  return isSameStep && before.isSelected === after.isSelected && before.isSimple === after.isSimple
}

function LoopMeter({ meter }: { meter: Meter }) {
  const formatWidth = (share: number) => `${share * 100}%`
  return (
    <div className={styles.meter}>
      <i className={styles.meterOk} style={{ width: formatWidth(meter.okShare) }} />
      {meter.skippedShare > 0 && <i className={styles.meterSkipped} style={{ width: formatWidth(meter.skippedShare) }} />}
      {meter.failedShare > 0 && <i className={styles.meterFailed} style={{ width: formatWidth(meter.failedShare) }} />}
    </div>
  )
}

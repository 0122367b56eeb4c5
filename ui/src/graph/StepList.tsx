import { useId, useState, type KeyboardEvent } from 'react'
import type { GraphView, PageStepView } from '../api/types'
import { noteStep } from './facts'
import styles from './Graph.module.css'

const MAX_OPTIONS_AT_ONCE = 40

export interface StepListProps {
  graph: GraphView
  steps: Record<string, PageStepView>
  selected: string | null
  onSelect: (step: string) => void
}

// The steps as a list that takes the focus: arrows move, Enter selects. Of many steps, those around the active one are in the page.
export function StepList({ graph, steps, selected, onSelect }: StepListProps) {
  const id = useId()
  const count = graph.steps.length
  const chosen = graph.steps.findIndex((step) => step.name === selected)
  const [moved, setMoved] = useState<number | null>(null)
  const active = Math.min(moved ?? Math.max(chosen, 0), count - 1)
  const first = Math.max(0, Math.min(active - MAX_OPTIONS_AT_ONCE / 2, count - MAX_OPTIONS_AT_ONCE))
  const shown = graph.steps.slice(first, first + MAX_OPTIONS_AT_ONCE)
  const onKeyDown = (event: KeyboardEvent) => {
    const target = findTarget(event.key, active, count)
    if (target === null && event.key !== 'Enter' && event.key !== ' ') return
    event.preventDefault()
    event.stopPropagation()
    if (target === null) onSelect(graph.steps[active]!.name)
    else setMoved(target)
  }
  return (
    <div
      className={styles.list}
      role="listbox"
      aria-label="Steps"
      tabIndex={0}
      aria-activedescendant={count === 0 ? undefined : `${id}-${active}`}
      onKeyDown={onKeyDown}
      onBlur={() => setMoved(null)}
    >
      {shown.map((step, n) => (
        <div
          key={step.name}
          id={`${id}-${first + n}`}
          role="option"
          aria-selected={step.name === selected}
          aria-setsize={count}
          aria-posinset={first + n + 1}
          data-active={first + n === active}
          onClick={() => onSelect(step.name)}
          ref={first + n === active ? scrollIntoList : undefined}
        >
          {noteStep(step, steps[step.name]).join(', ')}
        </div>
      ))}
    </div>
  )
}

function scrollIntoList(element: HTMLElement | null): void {
  const list = element?.parentElement
  if (!element || !list) return
  const isAbove = element.offsetTop < list.scrollTop
  const isBelow = element.offsetTop + element.offsetHeight > list.scrollTop + list.clientHeight
  if (isAbove || isBelow) list.scrollTop = element.offsetTop - list.clientHeight / 2
}

function findTarget(key: string, active: number, count: number): number | null {
  switch (key) {
    case 'ArrowDown':
      return Math.min(active + 1, count - 1)
    case 'ArrowUp':
      return Math.max(active - 1, 0)
    case 'Home':
      return 0
    case 'End':
      return count - 1
    default:
      return null
  }
}

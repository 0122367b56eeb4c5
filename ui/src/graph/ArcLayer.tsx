import { memo, useId, useMemo, type MouseEvent } from 'react'
import { ViewportPortal } from '@xyflow/react'
import type { GraphView, PageArcView } from '../api/types'
import { describeArc, writeLabel, type ArcFacts, type ArcState } from './facts'
import styles from './Graph.module.css'
import { LABEL_LINE_PX, measureLabel, measureLabelHeight, type Layout, type Point } from './layout'
import { isInArea, type Area } from './area'
import { ARROW_PATH, ARROW_SIZE_PX, measureRankLabels, traceArc } from './paths'

export interface ArcLayerProps {
  graph: GraphView
  arcs: Record<string, PageArcView>
  layout: Layout
  // Only the lines: for a view in which labels cannot be read.
  isOutline: boolean
  // Arcs outside of it are left out; null for all arcs.
  area: Area | null
  onHover: (note: string[] | null, event: MouseEvent) => void
}

const STATES: ArcState[] = ['untried', 'false', 'taken', 'error']

// The arcs of a graph, below its steps. They are drawn here, and not as edges of the library, because the layout knows the way of
// each and the place of its label.
export const ArcLayer = memo(function ArcLayer({ graph, arcs, layout, isOutline, area, onHover }: ArcLayerProps) {
  const id = useId()
  const placed = graph.arcs.filter((arc) => arc.id in layout.arcs && (area === null || isInArea(arc, layout, area)))
  const paths = useMemo(() => tracePaths(graph, layout), [graph, layout])
  const described = placed.map((arc) => ({ arc, facts: describeArc(arc, arcs[arc.id]) }))
  return (
    <ViewportPortal>
      <svg className={styles.arcs} width={layout.width} height={layout.height}>
        <defs>
          {STATES.map((state) => (
            <Arrow key={state} id={`${id}${state}`} state={state} />
          ))}
        </defs>
        {isOutline
          ? STATES.map((state) => {
              const sameState = described.filter(({ facts }) => facts.state === state)
              const path = sameState.map(({ arc }) => paths.get(arc.id)).join('')
              return <path key={state} className={`${styles.arc} ${styles[`arc_${state}`]}`} d={path} />
            })
          : described.map(({ arc, facts }) => (
              <Arc
                key={arc.id}
                facts={facts}
                path={paths.get(arc.id)!}
                label={layout.arcs[arc.id]!.label}
                markerId={`${id}${facts.state}`}
                onHover={onHover}
              />
            ))}
      </svg>
    </ViewportPortal>
  )
})

function tracePaths(graph: GraphView, layout: Layout): Map<string, string> {
  const placed = graph.arcs.filter((arc) => arc.id in layout.arcs)
  const labels = measureRankLabels(placed, layout)
  return new Map(placed.map((arc) => [arc.id, traceArc(arc, layout, labels)]))
}

function Arrow({ id, state }: { id: string; state: ArcState }) {
  return (
    <marker
      id={id}
      className={`${styles.arrow} ${styles[`arrow_${state}`]}`}
      markerUnits="userSpaceOnUse"
      markerWidth={ARROW_SIZE_PX}
      markerHeight={ARROW_SIZE_PX}
      refX={ARROW_SIZE_PX}
      refY={ARROW_SIZE_PX / 2}
      orient="auto"
    >
      <path d={ARROW_PATH} />
    </marker>
  )
}

interface ArcProps {
  facts: ArcFacts
  path: string
  label: Point | null
  markerId: string
  onHover: (note: string[] | null, event: MouseEvent) => void
}

function Arc({ facts, path, label, markerId, onHover }: ArcProps) {
  return (
    <g onMouseEnter={(event) => onHover(facts.note, event)} onMouseLeave={(event) => onHover(null, event)}>
      <path
        className={`${styles.arc} ${styles[`arc_${facts.state}`]}`}
        d={path}
        markerEnd={`url(#${markerId})`}
      />
      {label !== null && <ArcLabel facts={facts} middle={label} />}
    </g>
  )
}

const MAX_LABEL_CORNER_PX = 10

function ArcLabel({ facts, middle }: { facts: ArcFacts; middle: Point }) {
  const lines = writeLabel(facts)
  const width = measureLabel(Math.max(...lines.map((line) => line.length)))
  const height = measureLabelHeight(lines.length)
  const top = middle.y - ((lines.length - 1) * LABEL_LINE_PX) / 2
  return (
    <>
      <rect
        className={styles.labelBox}
        x={middle.x - width / 2}
        y={middle.y - height / 2}
        width={width}
        height={height}
        rx={MAX_LABEL_CORNER_PX}
      />
      <text className={`${styles.label} ${styles[`label_${facts.state}`]}`} aria-label={lines.join(' ')}>
        {lines.map((line, n) => (
          <tspan key={n} x={middle.x} y={top + n * LABEL_LINE_PX}>
            {n > 0 ? ` ${line}` : line}
          </tspan>
        ))}
      </text>
    </>
  )
}

import type { PointerEvent } from 'react'
import { useMemo, useState } from 'react'
import type { HistogramView } from '../api/types'
import { formatDate, formatNoun } from '../parts/format'
import styles from './Executions.module.css'
import { makeBars, selectWindow } from './histogram'

interface HistogramProps {
  histogram: HistogramView
  onSelect: (since: string, until: string) => void
}

interface Drag {
  from: number
  to: number
}

function findPlace(event: PointerEvent<HTMLElement>): number {
  const box = event.currentTarget.getBoundingClientRect()
  return Math.min(1, Math.max(0, (event.clientX - box.left) / box.width))
}

// Executions by the time they started. Dragging over it selects a window; the field beside it does the same by keyboard.
export function Histogram({ histogram, onSelect }: HistogramProps) {
  const bars = useMemo(() => makeBars(histogram), [histogram])
  const [drag, setDrag] = useState<Drag | null>(null)
  const total = Object.values(histogram.by).flat().reduce((sum, value) => sum + value, 0)
  const label = `${formatNoun(total, 'execution')} by start, since ${formatDate(histogram.from)}`
  const finish = () => {
    setDrag(null)
    if (drag === null || bars.count === 0) return
    const { since, until } = selectWindow(histogram, bars.count, drag.from, drag.to)
    onSelect(since, until)
  }
  return (
    <div
      className={styles.histogram}
      title="drag to select a window"
      onPointerDown={(event) => {
        event.currentTarget.setPointerCapture(event.pointerId)
        const place = findPlace(event)
        setDrag({ from: place, to: place })
      }}
      onPointerMove={(event) => drag && setDrag({ ...drag, to: findPlace(event) })}
      onPointerUp={finish}
      onPointerCancel={() => setDrag(null)}
    >
      <svg role="img" aria-label={label} viewBox={`0 0 ${Math.max(1, bars.count)} 1`} preserveAspectRatio="none">
        {bars.paths.map(({ tone, path }) => (
          <path key={tone} className={styles[tone]} d={path} />
        ))}
      </svg>
      {drag && (
        <div
          className={styles.chosen}
          style={{
            left: `${100 * Math.min(drag.from, drag.to)}%`,
            width: `${100 * Math.abs(drag.to - drag.from)}%`,
          }}
        />
      )}
    </div>
  )
}

import { useQuery } from '@tanstack/react-query'
import { askTimes } from '../api/queries'
import { LinkButton } from '../parts/Button'
import { formatCount, formatDuration } from '../parts/format'
import { Problem } from '../parts/Problem'
import { describeBars, findSlowest, measureBars } from './bars'
import styles from './Inspector.module.css'

const WIDTH = 600
const HEIGHT = 48
const MAX_COMMAND_ITEMS = 10_000

interface ItemBarsProps {
  id: string
  step: string
  run: number | null
  command: { first: number; count: number }
  onSelect: (item: number) => void
}

// How long the items of a command took, by index. When each of them ran is not recorded.
export function ItemBars({ id, step, run, command, onSelect }: ItemBarsProps) {
  const count = Math.min(command.count, MAX_COMMAND_ITEMS)
  const { data, error } = useQuery(askTimes(id, step, run, command.first, count))
  if (error) return <Problem error={error} />
  if (data === undefined || data.bars.length === 0) return null
  const slowest = findSlowest(data.bars)
  return (
    <div>
      <svg className={styles.bars} viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label={describeBars(data)}>
        {measureBars(data.bars, WIDTH, HEIGHT).map(({ bar, x, width, height }) => (
          <rect
            key={bar.first}
            className={bar.failed > 0 ? styles.barFailed : styles.barOk}
            x={x}
            y={HEIGHT - height}
            width={width}
            height={height}
            onClick={() => onSelect(bar.slowest)}
          >
            <title>{`item ${formatCount(bar.slowest)}: ${formatDuration(bar.ms)}`}</title>
          </rect>
        ))}
      </svg>
      <p className={styles.faint}>
        {describeBars(data)}{' '}
        {slowest !== null && slowest.ms > 0 && <LinkButton onClick={() => onSelect(slowest.slowest)}>slowest: {formatCount(slowest.slowest)}</LinkButton>}
      </p>
    </div>
  )
}

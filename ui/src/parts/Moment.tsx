import { describeMoment, formatAge, formatDuration, formatExactClock, formatOffset, measureMs } from './format'
import { useNow } from './useNow'

// How long ago; the pointer shows the local time with its zone, and ISO.
export function Age({ at }: { at: string | null }) {
  const now = useNow(10_000)
  if (at === null) return <span>–</span>
  return (
    <time dateTime={at} title={describeMoment(at)}>
      {formatAge(at, now)}
    </time>
  )
}

export function Clock({ at }: { at: string | null }) {
  if (at === null) return <span>–</span>
  return (
    <time dateTime={at} title={describeMoment(at)}>
      {formatExactClock(at)}
    </time>
  )
}

export function Offset({ at, start }: { at: string; start: string | null }) {
  return (
    <time dateTime={at} title={describeMoment(at)}>
      {formatOffset(at, start)}
    </time>
  )
}

// From start to end, or to now while it has not ended.
export function Elapsed({ start, end }: { start: string | null; end: string | null }) {
  const now = useNow(end === null ? 1000 : null)
  const ms = measureMs(start, end, now)
  return <span>{ms === null ? '–' : formatDuration(ms)}</span>
}

// Time and pixels: an axis on which long idle intervals are folded, and the part of it that is on the screen.

// Moments in milliseconds since the epoch.
export interface Interval {
  from: number
  to: number
}

// A stretch of time and the place it takes on the axis.
export interface Piece extends Interval {
  at: number
  length: number
  folded: boolean
}

export interface Axis {
  pieces: Piece[]
  length: number
}

// The part of an axis that is visible, in the unit of the axis.
export interface View {
  from: number
  to: number
}

export interface Scale {
  axis: Axis
  view: View
  left: number
  width: number
}

export interface Tick {
  x: number
  label: string
}

const MIN_FOLDED_SHARE = 0.1
const FOLDED_LENGTH_SHARE = 0.03
const MIN_VIEW_MS = 1
const MIN_TICK_DISTANCE_PX = 88
const MIN_EXTENT_MS = 1

// The times within `extent` that no interval of `busy` covers.
export function findIdle(busy: Interval[], extent: Interval): Interval[] {
  const ordered = [...busy].sort((a, b) => a.from - b.from)
  const idle: Interval[] = []
  let reached = extent.from
  for (const interval of ordered) {
    if (interval.from > reached) idle.push({ from: reached, to: Math.min(interval.from, extent.to) })
    reached = Math.max(reached, interval.to)
    if (reached >= extent.to) return idle
  }
  idle.push({ from: reached, to: extent.to })
  return idle
}

// An axis on which every idle interval longer than a tenth of the extent takes little room.
export function foldAxis(extent: Interval, idle: Interval[]): Axis {
  const whole = Math.max(extent.to - extent.from, MIN_EXTENT_MS)
  const gaps = idle.filter((gap) => gap.to - gap.from > whole * MIN_FOLDED_SHARE)
  const folded = gaps.reduce((sum, gap) => sum + gap.to - gap.from, 0)
  const rest = whole - folded
  const gapLength = rest > 0 ? rest * FOLDED_LENGTH_SHARE : whole
  const pieces: Piece[] = []
  let time = extent.from
  let at = 0
  const add = (to: number, length: number, isFolded: boolean) => {
    if (to > time) pieces.push({ from: time, to, at, length, folded: isFolded })
    if (to > time) at += length
    time = Math.max(time, to)
  }
  for (const gap of gaps) {
    add(gap.from, gap.from - time, false)
    add(gap.to, gapLength, true)
  }
  const end = extent.from + whole
  add(end, end - time, false)
  return { pieces, length: at }
}

export function toAxis(axis: Axis, time: number): number {
  const piece = axis.pieces.find((candidate) => time < candidate.to) ?? axis.pieces[axis.pieces.length - 1]!
  const share = (time - piece.from) / (piece.to - piece.from)
  return piece.at + share * piece.length
}

export function toTime(axis: Axis, at: number): number {
  const inside = axis.pieces.find((candidate) => at < candidate.at + candidate.length)
  const piece = inside ?? axis.pieces[axis.pieces.length - 1]!
  const share = (at - piece.at) / piece.length
  return piece.from + share * (piece.to - piece.from)
}

export function timeToPixel(scale: Scale, time: number): number {
  const { view, left, width } = scale
  const share = (toAxis(scale.axis, time) - view.from) / (view.to - view.from)
  return left + share * width
}

export function pixelToTime(scale: Scale, x: number): number {
  const { view, left, width } = scale
  const share = (x - left) / width
  return toTime(scale.axis, view.from + share * (view.to - view.from))
}

// How much time a pixel covers where nothing is folded.
export function countMsPerPixel(scale: Scale): number {
  return (scale.view.to - scale.view.from) / scale.width
}

export function viewWhole(axis: Axis): View {
  return { from: 0, to: axis.length }
}

export function isWhole(axis: Axis, view: View): boolean {
  return view.from <= 0 && view.to >= axis.length
}

// Change the length of the view by `factor`, so that the place `at` of the axis stays where it is.
export function zoomView(axis: Axis, view: View, factor: number, at: number): View {
  const length = view.to - view.from
  const wanted = Math.min(Math.max(length * factor, MIN_VIEW_MS), axis.length)
  const share = (at - view.from) / length
  return clampView(axis, at - share * wanted, wanted)
}

export function panView(axis: Axis, view: View, distance: number): View {
  return clampView(axis, view.from + distance, view.to - view.from)
}

function clampView(axis: Axis, from: number, length: number): View {
  const start = Math.min(Math.max(from, 0), Math.max(axis.length - length, 0))
  return { from: start, to: start + Math.min(length, axis.length) }
}

const TICK_STEPS_MS = [
  1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 15_000, 30_000, 60_000, 120_000, 300_000, 600_000,
  900_000, 1_800_000, 3_600_000, 7_200_000, 14_400_000, 21_600_000, 43_200_000, 86_400_000, 172_800_000, 604_800_000,
]
const SECOND_MS = 1_000
const MINUTE_MS = 60_000
const HOUR_MS = 3_600_000
const DAY_MS = 86_400_000

// Moments at round distances from `origin`, as far apart as their labels need; none within folded pieces.
export function listTicks(scale: Scale, origin: number): Tick[] {
  const minStep = countMsPerPixel(scale) * MIN_TICK_DISTANCE_PX
  const step = TICK_STEPS_MS.find((candidate) => candidate >= minStep) ?? Math.ceil(minStep / DAY_MS) * DAY_MS
  const right = scale.left + scale.width
  const ticks: Tick[] = []
  for (const piece of scale.axis.pieces) {
    if (piece.folded) continue
    const from = Math.max(piece.from, pixelToTime(scale, scale.left))
    const to = Math.min(piece.to, pixelToTime(scale, right))
    for (let n = Math.ceil((from - origin) / step); n * step + origin <= to; n += 1) {
      const x = timeToPixel(scale, n * step + origin)
      const before = ticks[ticks.length - 1]
      if (before !== undefined && x - before.x < MIN_TICK_DISTANCE_PX / 2) continue
      ticks.push({ x, label: formatTick(n * step, step) })
    }
  }
  return ticks
}

// A distance from the start, with the precision that ticks `step` apart need.
export function formatTick(offset: number, step: number): string {
  if (offset === 0) return '0'
  const size = Math.abs(offset)
  const sign = offset < 0 ? '−' : ''
  if (size < SECOND_MS) return `${sign}${Math.round(size)} ms`
  if (size < MINUTE_MS) return `${sign}${formatSeconds(size, step)} s`
  const pad = (value: number) => String(value).padStart(2, '0')
  const days = Math.floor(size / DAY_MS)
  const hours = Math.floor((size % DAY_MS) / HOUR_MS)
  const minutes = Math.floor((size % HOUR_MS) / MINUTE_MS)
  const seconds = size % MINUTE_MS
  if (days > 0) return `${sign}${days} d ${pad(hours)} h`
  if (hours > 0 && step >= MINUTE_MS) return `${sign}${hours} h ${pad(minutes)} min`
  if (step >= MINUTE_MS) return `${sign}${minutes} min`
  const clock = hours > 0 ? `${hours}:${pad(minutes)}` : `${minutes}`
  const [whole = '0', fraction] = formatSeconds(seconds, step).split('.')
  const tail = fraction === undefined ? '' : `.${fraction}`
  return `${sign}${clock}:${whole.padStart(2, '0')}${tail}`
}

function formatSeconds(ms: number, step: number): string {
  const digits = step >= SECOND_MS ? 0 : step >= 100 ? 1 : step >= 10 ? 2 : 3
  return (ms / SECOND_MS).toFixed(digits)
}

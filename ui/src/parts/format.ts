// How durations, counts, bytes and moments are written on all pages. Pure.

const NARROW_SPACE = '\u202f'
const MINUTE_MS = 60_000
const HOUR_MS = 3_600_000
const DAY_MS = 86_400_000
const BYTE_UNITS = ['B', 'kB', 'MB', 'GB', 'TB', 'PB']
const SHORT_ID_HEAD = 4
const SHORT_ID_TAIL = 4

// 536 ms · 6.21 s · 4 min 07 s · 2 h 05 min · 3 d 04 h
export function formatDuration(ms: number): string {
  if (!Number.isFinite(ms)) return '–'
  const whole = Math.max(0, ms)
  if (whole < 1) return `${roundTo(whole, 2)} ms`
  if (whole < 999.5) return `${Math.round(whole)} ms`
  if (whole < MINUTE_MS - 5) return `${formatSeconds(whole / 1000)} s`
  const seconds = Math.round(whole / 1000)
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${pad(seconds % 60)} s`
  const minutes = Math.round(whole / MINUTE_MS)
  if (minutes < 1440) return `${Math.floor(minutes / 60)} h ${pad(minutes % 60)} min`
  const hours = Math.round(whole / HOUR_MS)
  return `${Math.floor(hours / 24)} d ${pad(hours % 24)} h`
}

function formatSeconds(seconds: number): string {
  return seconds < 10 ? seconds.toFixed(2) : seconds.toFixed(1)
}

function pad(value: number): string {
  return String(value).padStart(2, '0')
}

function roundTo(value: number, digits: number): number {
  return Number(value.toFixed(digits))
}

// 100 000 with narrow spaces; 10 000+ when the count stopped there.
export function formatCount(count: number, more = false): string {
  const [whole = '', fraction] = String(count).split('.')
  const grouped = whole.replace(/\B(?=(\d{3})+$)/g, NARROW_SPACE)
  const text = fraction === undefined ? grouped : `${grouped}.${fraction}`
  return more ? `${text}+` : text
}

// item 7 · items 0–1 499
export function formatItemRange(first: number, count: number): string {
  return count === 1 ? `item ${formatCount(first)}` : `items ${formatCount(first)}–${formatCount(first + count - 1)}`
}

export interface CommandItems {
  first: number
  count: number
  // The items had failed and run again: `first` counts among these.
  repeats: boolean
  // Of such items: the lowest and the highest index, once known.
  indexes: number[] | null
}

// The items of a command by their indexes in the loop: items 0–1 499 · item 17 · 3 items of 3–17
export function formatCommandItems({ first, count, repeats, indexes }: CommandItems): string {
  if (!repeats) return formatItemRange(first, count)
  const [low, high] = indexes ?? []
  if (low === undefined || high === undefined) return formatNoun(count, 'failed item')
  return low === high ? formatItemRange(low, 1) : `${formatNoun(count, 'item')} of ${formatCount(low)}–${formatCount(high)}`
}

// A count with its noun: 1 item, 3 items.
export function formatNoun(count: number, noun: string, plural = `${noun}s`): string {
  return `${formatCount(count)} ${count === 1 ? noun : plural}`
}

// Decimal units: 812 B · 7.34 MB
export function formatBytes(bytes: number): string {
  let value = bytes
  let unit = 0
  while (value >= 999.5 && unit < BYTE_UNITS.length - 1) {
    value /= 1000
    unit += 1
  }
  const digits = unit === 0 || value >= 100 ? 0 : value >= 10 ? 1 : 2
  return `${value.toFixed(digits)} ${BYTE_UNITS[unit]}`
}

// A rate per second with three digits at most.
export function formatRate(perSecond: number): string {
  if (perSecond >= 100) return `${formatCount(Math.round(perSecond))}/s`
  if (perSecond >= 1) return `${roundTo(perSecond, 1)}/s`
  const perMinute = perSecond * 60
  return perMinute >= 1 ? `${roundTo(perMinute, 1)}/min` : `${roundTo(perMinute * 60, 1)}/h`
}

export function formatPercent(part: number, whole: number): string {
  if (whole <= 0) return '0 %'
  const percent = (100 * part) / whole
  if (percent > 99 && percent < 100) return '99 %'
  return `${Math.round(percent)} %`
}

// +2.15 s after a start
export function formatOffset(iso: string, startedAt: string | null): string {
  if (startedAt === null) return ''
  return `+${formatDuration(Date.parse(iso) - Date.parse(startedAt))}`
}

// 3 min ago today, 12:04 within a day, else the date.
export function formatAge(iso: string, now: number): string {
  const then = Date.parse(iso)
  const age = now - then
  if (age < 5_000) return 'now'
  if (age < MINUTE_MS) return `${Math.floor(age / 1000)} s ago`
  if (age < HOUR_MS) return `${Math.floor(age / MINUTE_MS)} min ago`
  if (age < DAY_MS) return formatClock(iso)
  return formatDate(iso)
}

// 12:04 in local time
export function formatClock(iso: string): string {
  const at = new Date(iso)
  return `${pad(at.getHours())}:${pad(at.getMinutes())}`
}

// 12:04:09.250 in local time
export function formatExactClock(iso: string): string {
  const at = new Date(iso)
  const millis = String(at.getMilliseconds()).padStart(3, '0')
  return `${formatClock(iso)}:${pad(at.getSeconds())}.${millis}`
}

// 2026-01-31 12:04 in local time
export function formatDate(iso: string): string {
  const at = new Date(iso)
  return `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())} ${formatClock(iso)}`
}

// One for all moments: a browser takes a millisecond to make one, and a table has dozens of moments.
const LOCAL_TIME = new Intl.DateTimeFormat(undefined, {
  year: 'numeric',
  month: 'numeric',
  day: 'numeric',
  hour: 'numeric',
  minute: 'numeric',
  second: 'numeric',
  timeZoneName: 'short',
})

// What the pointer shows over a moment: the local time with its zone, and ISO in UTC.
export function describeMoment(iso: string): string {
  const at = new Date(iso)
  if (Number.isNaN(at.getTime())) return iso
  return `${LOCAL_TIME.format(at)}\n${iso}`
}

// 7245…1200 of a long id
export function shortenId(id: string): string {
  const isShort = id.length <= SHORT_ID_HEAD + SHORT_ID_TAIL + 1
  return isShort ? id : `${id.slice(0, SHORT_ID_HEAD)}…${id.slice(-SHORT_ID_TAIL)}`
}

// How long something took, or has taken so far.
export function measureMs(startedAt: string | null, endedAt: string | null, now: number): number | null {
  if (startedAt === null) return null
  const end = endedAt === null ? now : Date.parse(endedAt)
  return Math.max(0, end - Date.parse(startedAt))
}

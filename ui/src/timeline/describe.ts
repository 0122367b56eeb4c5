// What a timeline says in words: to the pointer, and to those who do not see the canvas.
import type { SpanView } from '../api/types'
import { formatCount, formatDuration, formatCommandItems, formatNoun } from '../parts/format'
import { parseMoment } from './moments'
import type { BucketFacts, Hit } from './hit'
import type { Lane } from './pyramid'
import type { Interval } from './scale'

export interface LaneRow {
  step: string
  first: string
  last: string
  commands: string
  items: string
  failed: string
}

export function describeTimeline(lanes: Lane[], extent: Interval): string {
  const failed = lanes.filter((lane) => lane.counts.failed > 0)
  const failures = failed.map((lane) => `${lane.step} ${formatCount(lane.counts.failed)}`).slice(0, 8)
  const steps = formatNoun(lanes.length, 'step')
  const length = formatDuration(extent.to - extent.from)
  const end = failures.length === 0 ? 'no failures' : `failures: ${failures.join(', ')}`
  return `Timeline of ${steps} over ${length}, ${end}. The table after it has the same figures.`
}

export function listRows(lanes: Lane[], origin: number): LaneRow[] {
  return lanes.map((lane) => ({
    step: lane.step,
    first: `+${formatDuration(lane.from - origin)}`,
    last: `+${formatDuration(lane.to - origin)}`,
    commands: `${formatCount(lane.counts.ended)} of ${formatCount(lane.counts.commands)}`,
    items: formatCount(lane.counts.items),
    failed: formatCount(lane.counts.failed),
  }))
}

// The lines of the note beside the pointer; none where there is nothing to say.
export function describeHit(hit: Hit | null, origin: number): string[] {
  if (hit === null) return []
  const formatMoment = (time: number) => `+${formatDuration(time - origin)}`
  switch (hit.on) {
    case 'cursor':
      return []
    case 'label':
      return [hit.step]
    case 'axis':
      return [formatMoment(hit.time), 'click: show the state at this moment']
    case 'fold':
      return [`idle for ${formatDuration(hit.idle.to - hit.idle.from)}, folded`]
    case 'lane':
      if (hit.span !== null) return describeSpan(hit.step, hit.span, origin)
      if (hit.bucket !== null) return describeBucket(hit.step, hit.bucket, origin)
      return [`${hit.step} ${formatMoment(hit.time)}`]
  }
}

function describeSpan(step: string, span: SpanView, origin: number): string[] {
  const attempt = span.attempt > 1 ? `, attempt ${span.attempt}` : ''
  const lines = [`${step}${describeItems(span)}${attempt}`]
  const start = span.started ?? span.issued ?? span.ended
  lines.push(start === null ? span.status : `${span.status} ${describeTime(span, parseMoment(start), origin)}`)
  const counts = [
    span.ok > 0 ? `${formatCount(span.ok)} ok` : null,
    span.failed > 0 ? `${formatCount(span.failed)} failed` : null,
    span.skipped > 0 ? `${formatCount(span.skipped)} skipped` : null,
  ].filter((count) => count !== null)
  if (counts.length > 0) lines.push(counts.join(', '))
  if (span.started !== null && span.issued !== null) {
    const waited = parseMoment(span.started) - parseMoment(span.issued)
    if (waited >= 1) lines.push(`waited ${formatDuration(waited)} for a worker`)
  }
  if (span.reason !== null) lines.push(span.reason)
  if (span.worker !== null) lines.push(`on ${span.worker}`)
  if (hasItems(span)) lines.push('click: its items')
  return lines
}

// Whether it is a command of a loop that has reported items.
export function hasItems(span: SpanView): boolean {
  return span.count > 0 && span.ok + span.failed + span.skipped > 0
}

function describeTime(span: SpanView, start: number, origin: number): string {
  const length = span.ended === null ? '' : ` for ${formatDuration(parseMoment(span.ended) - start)}`
  return `+${formatDuration(start - origin)}${length}`
}

function describeItems(span: SpanView): string {
  const isOfLoop = span.count > 0
  if (!isOfLoop) return ''
  return ` ${formatCommandItems(span)}`
}

function describeBucket(step: string, bucket: BucketFacts, origin: number): string[] {
  const from = `+${formatDuration(bucket.from - origin)}`
  const running = bucket.running >= 10 ? Math.round(bucket.running) : Math.round(bucket.running * 10) / 10
  const lines = [
    `${step} ${from}, ${formatDuration(bucket.to - bucket.from)}`,
    `${formatCount(running)} running, ${formatCount(bucket.ended)} ended`,
  ]
  if (bucket.failed > 0) lines.push(`${formatCount(bucket.failed)} failed`)
  return lines
}

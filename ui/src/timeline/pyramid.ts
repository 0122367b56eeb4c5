// What a lane of the timeline draws, at several widths of bucket. Each level has half as many buckets as the one below it, so a
// frame costs as many buckets as there are pixels, and not as many as there are spans.
import type { BandView, SpanView, TimelineView } from '../api/types'
import { parseMoment } from './moments'
import { findIdle, type Interval } from './scale'

// Buckets of one width. Sizes are means and counts over a bucket.
export interface Level {
  bucketMs: number
  running: Float32Array
  ended: Float32Array
  failed: Float32Array
  held: Float32Array
  retried: Float32Array
  peakRunning: number
  peakEnded: number
}

// The spans of a lane in the order of their start.
export interface SpanTable {
  spans: SpanView[]
  from: Float64Array
  started: Float64Array
  ended: Float64Array
  // The latest end among a span and those before it.
  reached: Float64Array
  row: Uint8Array
  rows: number
  // Where the drawing of a span begins: when it was issued, or when its row became free.
  shownFrom: Float64Array
}

export interface LaneCounts {
  // Commands, and those of them that have ended.
  commands: number
  ended: number
  items: number
  failed: number
  retried: number
}

export interface Lane extends Interval {
  step: string
  levels: Level[]
  table: SpanTable | null
  counts: LaneCounts
}

export const MAX_ROWS = 6
export const NO_ROW = 255
const MIN_BUCKETS = 64
const MAX_BUCKETS = 1 << 16
const MIN_BUCKET_MS = 0.001
const MIN_BUCKET_PX = 2

// The timeline of an execution that has not ended reaches until now: what waits has waited until now, without an event.
export function extendTo(data: TimelineView, now: number): TimelineView {
  return now > parseMoment(data.to) ? { ...data, to: new Date(now).toISOString() } : data
}

// A lane per step that has begun, in the order in which the steps began.
export function buildLanes(data: TimelineView): Lane[] {
  const now = parseMoment(data.to)
  const spansByStep = groupSpans(data.spans ?? [])
  const steps = new Set([...Object.keys(data.steps), ...spansByStep.keys()])
  const lanes = [...steps].map((step) => {
    const spans = spansByStep.get(step)
    return spans === undefined ? keepBandLane(step, data.steps[step]!) : buildSpanLane(step, spans, now)
  })
  const findSeq = (lane: Lane) => data.steps[lane.step]?.first_seq ?? 0
  return lanes.sort((a, b) => a.from - b.from || findSeq(a) - findSeq(b))
}

// The lanes of the whole execution, with those of a window in place of the ones it has more about.
export function insertDetail(lanes: Lane[], detail: Lane[]): Lane[] {
  const byStep = new Map(detail.map((lane) => [lane.step, lane]))
  return lanes.map((lane) => byStep.get(lane.step) ?? lane)
}

function groupSpans(spans: SpanView[]): Map<string, SpanView[]> {
  const groups = new Map<string, SpanView[]>()
  for (const span of spans) {
    const group = groups.get(span.step)
    if (group === undefined) groups.set(span.step, [span])
    else group.push(span)
  }
  return groups
}

export function buildSpanLane(step: string, spans: SpanView[], now: number): Lane {
  const table = buildTable(spans, now)
  const size = table.spans.length
  const from = table.from[0]!
  const to = Math.max(table.reached[size - 1]!, from + MIN_BUCKET_MS)
  const wanted = Math.max(MIN_BUCKETS, size)
  const buckets = Math.min(MAX_BUCKETS, 2 ** Math.ceil(Math.log2(wanted)))
  const base = fillBuckets(table, from, (to - from) / buckets, buckets)
  return { step, from, to, levels: stackLevels(base), table, counts: countSpans(spans) }
}

function buildTable(unordered: SpanView[], now: number): SpanTable {
  const size = unordered.length
  const issued = Float64Array.from(unordered, (span) => findIssued(span, now))
  const order = Uint32Array.from(unordered, (_, n) => n).sort((a, b) => issued[a]! - issued[b]!)
  const table: SpanTable = {
    spans: Array.from(order, (n) => unordered[n]!),
    from: issued.sort(),
    started: new Float64Array(size),
    ended: new Float64Array(size),
    reached: new Float64Array(size),
    row: new Uint8Array(size),
    rows: 1,
    shownFrom: new Float64Array(size),
  }
  let reached = -Infinity
  for (let n = 0; n < size; n += 1) {
    const { started, ended } = findRun(table.spans[n]!, table.from[n]!, now)
    table.started[n] = started
    table.ended[n] = ended
    reached = Math.max(reached, ended)
    table.reached[n] = reached
  }
  assignRows(table)
  return table
}

// When it was issued; of an old span that may not be known.
function findIssued(span: SpanView, now: number): number {
  const known = span.issued ?? span.started ?? span.ended
  return known === null ? now : parseMoment(known)
}

// A span that waits, or was returned before it began, is held until its end.
function findRun(span: SpanView, issued: number, now: number): { started: number; ended: number } {
  const begun = span.started === null ? null : Math.max(issued, parseMoment(span.started))
  const ended = Math.max(begun ?? issued, span.ended === null ? now : parseMoment(span.ended))
  const isWaiting = begun === null || span.status === 'waiting'
  return { started: isWaiting ? ended : begun, ended }
}

// Put spans that run at the same time into different rows. A span without a free row gets `NO_ROW`.
function assignRows(table: SpanTable): void {
  const freeFrom: number[] = []
  for (let n = 0; n < table.spans.length; n += 1) {
    const needed = isHeld(table.spans[n]!) ? table.from[n]! : table.started[n]!
    let row = freeFrom.findIndex((end) => end <= needed)
    if (row < 0) row = freeFrom.length < MAX_ROWS ? freeFrom.length : NO_ROW
    table.row[n] = row
    if (row === NO_ROW) continue
    table.shownFrom[n] = Math.max(table.from[n]!, freeFrom[row] ?? -Infinity)
    freeFrom[row] = table.ended[n]!
  }
  table.rows = Math.max(1, freeFrom.length)
}

// A command has a span for each attempt. It has ended with the span that nothing follows.
function countSpans(spans: SpanView[]): LaneCounts {
  const commands = new Set<string>()
  const counts: LaneCounts = { commands: 0, ended: 0, items: 0, failed: 0, retried: 0 }
  for (const span of spans) {
    commands.add(span.command_id)
    if (span.ended !== null && !isHeld(span)) counts.ended += 1
    if (span.count > 0) counts.items += span.ok + span.failed + span.skipped
    counts.failed += countFailures(span)
    if (span.status === 'returned') counts.retried += 1
  }
  counts.commands = commands.size
  return counts
}

export function countFailures(span: SpanView): number {
  return span.status === 'failed' ? Math.max(1, span.failed) : span.failed
}

export function isHeld(span: SpanView): boolean {
  return span.status === 'waiting' || span.status === 'returned'
}

// Time that begins at a moment and lasts: one addition per end of a span, summed over all buckets afterwards.
class Coverage {
  private readonly partial: Float64Array
  private readonly change: Float64Array

  constructor(
    private readonly from: number,
    private readonly bucketMs: number,
    private readonly buckets: number,
  ) {
    this.partial = new Float64Array(buckets + 1)
    this.change = new Float64Array(buckets + 2)
  }

  add(from: number, to: number): void {
    this.addEdge(from, 1)
    this.addEdge(to, -1)
  }

  private addEdge(time: number, sign: number): void {
    const place = (time - this.from) / this.bucketMs
    const bucket = Math.min(Math.floor(place), this.buckets)
    this.partial[bucket]! += sign * (bucket + 1 - place)
    this.change[bucket + 1]! += sign
  }

  sum(): Float32Array {
    const covered = new Float32Array(this.buckets)
    let open = 0
    for (let n = 0; n < this.buckets; n += 1) {
      open += this.change[n]!
      covered[n] = Math.max(0, open + this.partial[n]!)
    }
    return covered
  }
}

function fillBuckets(table: SpanTable, from: number, bucketMs: number, buckets: number): Level {
  const running = new Coverage(from, bucketMs, buckets)
  const held = new Coverage(from, bucketMs, buckets)
  const ended = new Float32Array(buckets)
  const failed = new Float32Array(buckets)
  const retried = new Float32Array(buckets)
  for (let n = 0; n < table.spans.length; n += 1) {
    const span = table.spans[n]!
    const start = table.started[n]!
    const end = table.ended[n]!
    const bucket = Math.min(Math.floor((end - from) / bucketMs), buckets - 1)
    if (isHeld(span)) held.add(start, end)
    else running.add(start, end)
    held.add(table.from[n]!, start)
    if (span.ended !== null && !isHeld(span)) ended[bucket]! += Math.max(1, span.ok + span.failed + span.skipped)
    failed[bucket]! += countFailures(span)
    if (span.status === 'returned') retried[bucket]! += 1
  }
  return finishLevel({ bucketMs, running: running.sum(), ended, failed, held: held.sum(), retried })
}

// While an execution is live, most bands stay as they are from one message to the next.
const laneByBand = new WeakMap<BandView, Lane>()

function keepBandLane(step: string, band: BandView): Lane {
  const lane = laneByBand.get(band) ?? buildBandLane(step, band)
  laneByBand.set(band, lane)
  return lane
}

export function buildBandLane(step: string, band: BandView): Lane {
  const bucketMs = band.width_us / 1_000
  const from = parseMoment(band.start)
  const buckets = Math.max(1, band.started.length)
  const sum = (counts: number[]) => counts.reduce((total, count) => total + count, 0)
  const ended = sum(band.ended)
  const counts: LaneCounts = {
    // A command that was stopped before it began has ended without a start.
    commands: Math.max(sum(band.started), ended),
    ended,
    items: sum(band.items),
    failed: sum(band.failed),
    retried: sum(band.retried),
  }
  const base = finishLevel({
    bucketMs,
    running: countRunning(band, buckets),
    ended: Float32Array.from({ length: buckets }, (_, n) => Math.max(band.items[n] ?? 0, band.ended[n] ?? 0)),
    failed: Float32Array.from({ length: buckets }, (_, n) => band.failed[n] ?? 0),
    held: new Float32Array(buckets),
    retried: Float32Array.from({ length: buckets }, (_, n) => band.retried[n] ?? 0),
  })
  return { step, from, to: from + buckets * bucketMs, levels: stackLevels(base), table: null, counts }
}

// How many commands run in a bucket: those that had begun before it, or the time worked in it where they are shorter than a bucket.
function countRunning(band: BandView, buckets: number): Float32Array {
  const open = new Float64Array(buckets + 1)
  for (let n = 0; n < buckets; n += 1) open[n + 1] = open[n]! + (band.started[n] ?? 0) - (band.ended[n] ?? 0)
  // A window that begins in the middle of a step has ends without their start.
  const before = Math.max(0, -open.reduce((least, value) => Math.min(least, value), 0))
  return Float32Array.from({ length: buckets }, (_, n) => {
    const mean = before + (open[n]! + open[n + 1]!) / 2
    const most = before + open[n]! + (band.started[n] ?? 0)
    const worked = (band.busy_us[n] ?? 0) / band.width_us
    return Math.max(mean, Math.min(worked, most))
  })
}

type Buckets = Omit<Level, 'peakRunning' | 'peakEnded'>

function finishLevel(buckets: Buckets): Level {
  return { ...buckets, peakRunning: findPeak(buckets.running), peakEnded: findPeak(buckets.ended) }
}

function findPeak(values: Float32Array): number {
  let peak = 0
  for (let n = 0; n < values.length; n += 1) if (values[n]! > peak) peak = values[n]!
  return peak
}

function stackLevels(base: Level): Level[] {
  const levels = [base]
  let below = base
  while (below.running.length > 1) {
    below = mergeLevel(below)
    levels.push(below)
  }
  return levels
}

function mergeLevel(level: Level): Level {
  return finishLevel({
    bucketMs: level.bucketMs * 2,
    running: mergePairs(level.running, 0.5),
    ended: mergePairs(level.ended, 1),
    failed: mergePairs(level.failed, 1),
    held: mergePairs(level.held, 0.5),
    retried: mergePairs(level.retried, 1),
  })
}

function mergePairs(values: Float32Array, share: number): Float32Array {
  const merged = new Float32Array(Math.ceil(values.length / 2))
  for (let n = 0; n < values.length; n += 1) merged[n >> 1]! += values[n]! * share
  return merged
}

// The finest level with buckets that can be told apart on the screen.
export function chooseLevel(lane: Lane, msPerPixel: number): Level {
  const wide = lane.levels.find((level) => level.bucketMs >= msPerPixel * MIN_BUCKET_PX)
  return wide ?? lane.levels[lane.levels.length - 1]!
}

// The range of spans, as indexes, that may overlap an interval.
export function findSpans(table: SpanTable, window: Interval): { from: number; to: number } {
  const size = table.spans.length
  const from = findFirst(size, (n) => table.reached[n]! >= window.from)
  const to = findFirst(size, (n) => table.from[n]! > window.to)
  return { from, to: Math.max(from, to) }
}

function findFirst(size: number, isTrue: (n: number) => boolean): number {
  let low = 0
  let high = size
  while (low < high) {
    const middle = (low + high) >> 1
    if (isTrue(middle)) high = middle
    else low = middle + 1
  }
  return low
}

// The times in which no step works. Time that a command waits counts as idle.
export function findIdleTimes(lanes: Lane[], extent: Interval): Interval[] {
  return findIdle(lanes.flatMap(listBusy), extent)
}

function listBusy(lane: Lane): Interval[] {
  const base = lane.levels[0]!
  const busy: Interval[] = []
  let open: Interval | null = null
  for (let n = 0; n < base.running.length; n += 1) {
    const isBusy = base.running[n]! > 0 || base.ended[n]! > 0
    const to = lane.from + (n + 1) * base.bucketMs
    if (isBusy && open === null) open = { from: to - base.bucketMs, to }
    else if (isBusy && open !== null) open.to = to
    else if (open !== null) {
      busy.push(open)
      open = null
    }
  }
  if (open !== null) busy.push(open)
  return busy
}

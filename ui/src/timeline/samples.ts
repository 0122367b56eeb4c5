// Data for tests: spans and bands in the shape of the server's answers.
import type { BandView, SpanView, TimelineView } from '../api/types'

export const START = Date.parse('2024-05-01T12:00:00.000Z')

export function at(ms: number): string {
  return new Date(START + ms).toISOString()
}

export function makeSpan(step: string, from: number, to: number | null, more: Partial<SpanView> = {}): SpanView {
  return {
    step,
    run: 1,
    command_id: `${step}-${from}`,
    attempt: 1,
    kind: 'step',
    first: 0,
    count: 0,
    repeats: false,
    indexes: null,
    issued: at(from),
    started: at(from),
    ended: to === null ? null : at(to),
    ok: 1,
    failed: 0,
    skipped: 0,
    status: to === null ? 'running' : 'completed',
    reason: null,
    worker: 'w1',
    ...more,
  }
}

export function makeBand(counts: Partial<BandView>, widthMs: number): BandView {
  const size = counts.started?.length ?? 0
  const none = () => Array.from({ length: size }, () => 0)
  return {
    first_at: at(0),
    last_at: at(size * widthMs),
    first_seq: 1,
    last_seq: 9,
    width_us: widthMs * 1_000,
    start: at(0),
    started: none(),
    ended: none(),
    items: none(),
    failed: none(),
    retried: none(),
    busy_us: none(),
    slowest_us: none(),
    ...counts,
  }
}

export function makeTimeline(toMs: number, more: Partial<TimelineView>): TimelineView {
  return { from: at(0), to: at(toMs), exact: true, steps: {}, spans: null, next_zoom: null, marks: [], ...more }
}

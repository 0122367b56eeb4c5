import type { BandView, ExplanationView, PageView } from './types'

// What streams and logs bring, which OpenAPI does not describe. Everything else is in the generated types.

// A moment as ISO text with Z.
export type Iso = string

export type Cause = ExplanationView['causes'][number]

export type BandCounter = 'started' | 'ended' | 'items' | 'failed' | 'retried' | 'busy_us' | 'slowest_us'

// The buckets of a step that changed, from the index `from` on.
export interface BandChange extends Partial<Pick<BandView, BandCounter>>, Pick<BandView, 'start' | 'width_us'> {
  from: number
}

type ChangingFields = 'seq' | 'number' | 'events' | 'status' | 'updated_at' | 'ended_at' | 'error' | 'failure'
type ChangingParts = 'steps' | 'arcs' | 'failures' | 'live' | 'live_total'

// The last part of the step logs that the server knew when it sent a message of the watch.
export interface LogsPart {
  logs_part?: number | null
}

// A message `delta` of the watch: `steps` and `arcs` have those that changed only.
export interface Delta extends Pick<PageView, ChangingFields | ChangingParts>, LogsPart {
  bands: Record<string, BandChange>
}

export interface LogLine {
  part: number
  step: string
  command_id: string
  attempt: number
  seq: number
  at: Iso
  task: string | null
  item: number | null
  stream: string
  line: string
}

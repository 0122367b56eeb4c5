// A status has one of five tones and a shape of its own, so that it can be told without colours.

export type Tone = 'completed' | 'running' | 'waiting' | 'failed' | 'idle'

export type Shape =
  | 'disc-tick'
  | 'ring-tick'
  | 'arc'
  | 'clock'
  | 'dotted-ring'
  | 'bars'
  | 'diamond'
  | 'hexagon'
  | 'square'
  | 'dash'

export interface Look {
  tone: Tone
  shape: Shape
  word: string
}

const LOOKS: Record<string, Look> = {
  completed: { tone: 'completed', shape: 'disc-tick', word: 'completed' },
  inherited: { tone: 'completed', shape: 'ring-tick', word: 'inherited' },
  ok: { tone: 'completed', shape: 'disc-tick', word: 'ok' },
  running: { tone: 'running', shape: 'arc', word: 'running' },
  waiting: { tone: 'waiting', shape: 'clock', word: 'waiting' },
  pending: { tone: 'waiting', shape: 'dotted-ring', word: 'pending' },
  paused: { tone: 'waiting', shape: 'bars', word: 'paused' },
  cancelling: { tone: 'idle', shape: 'square', word: 'cancelling' },
  failed: { tone: 'failed', shape: 'diamond', word: 'failed' },
  error: { tone: 'failed', shape: 'diamond', word: 'failed' },
  dead: { tone: 'failed', shape: 'diamond', word: 'dead' },
  quarantined: { tone: 'failed', shape: 'hexagon', word: 'quarantined' },
  cancelled: { tone: 'idle', shape: 'square', word: 'cancelled' },
  returned: { tone: 'waiting', shape: 'clock', word: 'returned' },
  skipped: { tone: 'idle', shape: 'dash', word: 'skipped' },
  not_reached: { tone: 'idle', shape: 'dotted-ring', word: 'not reached' },
}

const ENDED = new Set(['completed', 'failed', 'cancelled'])

// The tone, shape and word of a status. An unknown one keeps its own word.
export function getLook(status: string): Look {
  return LOOKS[status] ?? { tone: 'idle', shape: 'dotted-ring', word: status.replaceAll('_', ' ') }
}

// The status of an execution and its word. One that runs and waits for a person is found by both filters, so it has both words.
export function describeStatus(status: string, waitsForPerson: boolean): { status: string; word: string } {
  if (status === 'running' && waitsForPerson) return { status: 'waiting', word: 'running, waiting' }
  return { status, word: getLook(status).word }
}

export function hasEnded(status: string): boolean {
  return ENDED.has(status)
}

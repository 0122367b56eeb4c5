// What the search field offers for a text. Pure.

export interface Offer {
  label: string
  hint: string
  go: Destination
}

export type Destination =
  | { to: 'execution'; id: string }
  | { to: 'executions'; search: Record<string, string> }
  | { to: 'theme'; choice: 'system' | 'light' | 'dark' }
  | { to: 'keys' }

const FIXED: readonly Offer[] = [
  { label: 'failed executions', hint: 'list', go: { to: 'executions', search: { status: 'failed' } } },
  { label: 'running executions', hint: 'list', go: { to: 'executions', search: { status: 'running' } } },
  { label: 'executions that wait for a person', hint: 'list', go: { to: 'executions', search: { status: 'waiting' } } },
  { label: 'all executions', hint: 'g e', go: { to: 'executions', search: {} } },
  { label: 'dark theme', hint: 'theme', go: { to: 'theme', choice: 'dark' } },
  { label: 'light theme', hint: 'theme', go: { to: 'theme', choice: 'light' } },
  { label: 'theme of the system', hint: 'theme', go: { to: 'theme', choice: 'system' } },
  { label: 'keys', hint: '?', go: { to: 'keys' } },
]
const ID_PATTERN = /^\d{6,20}$/

// The offers for a text, the most direct first.
export function offerCommands(text: string): Offer[] {
  const wanted = text.trim()
  if (wanted === '') return [...FIXED]
  const found: Offer[] = []
  if (ID_PATTERN.test(wanted)) found.push({ label: `open ${wanted}`, hint: 'execution', go: { to: 'execution', id: wanted } })
  const lower = wanted.toLowerCase()
  const fixed = FIXED.filter((offer) => offer.label.includes(lower))
  const search: Offer = {
    label: `executions with “${wanted}”`,
    hint: 'id, path or error',
    go: { to: 'executions', search: { q: wanted } },
  }
  return [...found, search, ...fixed]
}

import type { PageCommand } from '../parts/pageCommands'

// What the search field offers for a text. Pure.

export interface Offer {
  label: string
  hint: string
  go: Destination
  // Why it cannot be chosen now.
  refusal?: string | null
}

export type Destination =
  | { to: 'execution'; id: string }
  | { to: 'executions'; search: Record<string, string> }
  | { to: 'theme'; choice: 'system' | 'light' | 'dark' }
  | { to: 'keys' }
  | { to: 'sign-in' }
  | { to: 'page'; run: () => void }

const FIXED: readonly Offer[] = [
  { label: 'failed executions', hint: 'list', go: { to: 'executions', search: { status: 'failed' } } },
  { label: 'running executions', hint: 'list', go: { to: 'executions', search: { status: 'running' } } },
  { label: 'executions that wait for a person', hint: 'list', go: { to: 'executions', search: { status: 'waiting' } } },
  { label: 'all executions', hint: 'g e', go: { to: 'executions', search: {} } },
  { label: 'dark theme', hint: 'theme', go: { to: 'theme', choice: 'dark' } },
  { label: 'light theme', hint: 'theme', go: { to: 'theme', choice: 'light' } },
  { label: 'theme of the system', hint: 'theme', go: { to: 'theme', choice: 'system' } },
  { label: 'keys', hint: '?', go: { to: 'keys' } },
  { label: 'sign out', hint: 'session', go: { to: 'sign-in' } },
]
const ID_PATTERN = /^\d{6,20}$/

// The offers for a text, the most direct first: those of the page on the screen stand before those of all pages.
export function offerCommands(text: string, ofPage: readonly PageCommand[] = []): Offer[] {
  const wanted = text.trim()
  const page = ofPage.map(makePageOffer)
  if (wanted === '') return [...page, ...FIXED]
  const found: Offer[] = []
  if (ID_PATTERN.test(wanted)) found.push({ label: `open ${wanted}`, hint: 'execution', go: { to: 'execution', id: wanted } })
  const lower = wanted.toLowerCase()
  const matches = (offer: Offer) => offer.label.toLowerCase().includes(lower)
  const fixed = FIXED.filter(matches)
  const search: Offer = {
    label: `executions with “${wanted}”`,
    hint: 'id, path or error',
    go: { to: 'executions', search: { q: wanted } },
  }
  return [...found, ...page.filter(matches), search, ...fixed]
}

function makePageOffer({ label, hint, refusal, run }: PageCommand): Offer {
  return { label, hint: refusal ?? hint, refusal, go: { to: 'page', run } }
}

import type { SessionView } from '../api/types'

// What the signed-in caller may do. The server decides; the page only says it beforehand. Pure.

// Why the caller may not change executions; null: they may, or it is not known yet.
export function findRefusal(session: SessionView | undefined): string | null {
  if (session === undefined || session.permissions.includes('operate')) return null
  const roles = session.roles.join(', ') || 'none'
  return `your role (${roles}) may only look: this needs the role operator, author or admin`
}

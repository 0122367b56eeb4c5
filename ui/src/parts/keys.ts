// The keyboard map: which key does what, and how single keys and sequences such as `g e` are told apart. Pure.

export interface KeyHelp {
  keys: string
  does: string
  where: 'everywhere' | 'lists' | 'execution'
}

export const KEY_HELP: readonly KeyHelp[] = [
  { keys: '/', does: 'search, or run a command', where: 'everywhere' },
  { keys: '?', does: 'show the keys', where: 'everywhere' },
  { keys: 'g e', does: 'go to the executions', where: 'everywhere' },
  { keys: 'y', does: 'copy as a command of the CLI', where: 'everywhere' },
  { keys: 'Escape', does: 'go back: close, clear, then leave', where: 'everywhere' },
  { keys: 'j', does: 'next row', where: 'lists' },
  { keys: 'k', does: 'row before', where: 'lists' },
  { keys: 'Enter', does: 'open the row', where: 'lists' },
  { keys: 'x', does: 'select the row', where: 'lists' },
  { keys: 'f', does: 'next failure', where: 'execution' },
  { keys: '[', does: 'landmark before', where: 'execution' },
  { keys: ']', does: 'next landmark', where: 'execution' },
  { keys: '{', does: 'event before', where: 'execution' },
  { keys: '}', does: 'next event', where: 'execution' },
  { keys: 'l', does: 'back to live', where: 'execution' },
  { keys: '1…8', does: 'tab of the inspector', where: 'execution' },
]

// A key that begins a sequence waits so long for the second one.
export const SEQUENCE_MS = 1000
const PREFIXES = new Set(['g'])

export interface PressedKey {
  key: string
  ctrlKey: boolean
  metaKey: boolean
  altKey: boolean
}

export interface Pending {
  prefix: string
  at: number
}

export interface KeyStep {
  name: string | null
  pending: Pending | null
}

// Reads one key. `name` is what was pressed in full, or null if a sequence has begun or the key is not ours.
export function readKey(pressed: PressedKey, pending: Pending | null, now: number): KeyStep {
  if (pressed.ctrlKey || pressed.metaKey || pressed.altKey) return { name: null, pending: null }
  const isInTime = pending !== null && now - pending.at <= SEQUENCE_MS
  if (isInTime) return { name: `${pending.prefix} ${pressed.key}`, pending: null }
  if (PREFIXES.has(pressed.key)) return { name: null, pending: { prefix: pressed.key, at: now } }
  return { name: pressed.key, pending: null }
}

const TEXT_INPUTS = new Set(['INPUT', 'TEXTAREA', 'SELECT'])

// Keys that are typed into a field are not commands.
export function isTyping(tagName: string, isEditable: boolean, inputType: string | null): boolean {
  if (isEditable) return true
  if (tagName === 'INPUT' && (inputType === 'checkbox' || inputType === 'radio')) return false
  return TEXT_INPUTS.has(tagName)
}

// The commands of the CLI that do the same as the pages. Pure.

// Quotes a word for a shell, if it needs quotes.
export function quote(word: string): string {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`
}

export function joinCommand(...words: (string | null | undefined | false)[]): string {
  const given = words.filter((word): word is string => typeof word === 'string' && word !== '')
  return given.map(quote).join(' ')
}

// What the dialogs that approve and reject do.
export function makeApprovalCommand(id: string, step: string, approved: boolean, comment: string): string {
  const reason = comment.trim()
  return joinCommand('noetl', 'exec', approved ? 'approve' : 'reject', id, step, reason && '--comment', reason)
}

// What the dialog that sends a signal does. A payload is YAML, and JSON is YAML.
export function makeSignalCommand(id: string, name: string, payload: unknown): string {
  const given = payload === null || payload === undefined ? [] : ['--payload', JSON.stringify(payload)]
  return joinCommand('noetl', 'signal', id, name.trim(), ...given)
}

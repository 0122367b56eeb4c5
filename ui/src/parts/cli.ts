// The commands of the CLI that do the same as the pages. Pure.

// Quotes a word for a shell, if it needs quotes.
export function quote(word: string): string {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`
}

export function joinCommand(...words: (string | null | undefined | false)[]): string {
  const given = words.filter((word): word is string => typeof word === 'string' && word !== '')
  return given.map(quote).join(' ')
}

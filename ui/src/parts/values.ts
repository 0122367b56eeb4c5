// How values from outside become text of a bounded length. Pure.

export const MAX_VALUE_CHARS = 20_000

export interface ShownValue {
  text: string | null
  cutBytes: number
}

interface CutText {
  cut: true
  text: string
}

// Previews that the server cut are `{cut: true, text}`.
export function isCutText(value: unknown): value is CutText {
  if (typeof value !== 'object' || value === null) return false
  const candidate = value as Partial<CutText>
  return candidate.cut === true && typeof candidate.text === 'string'
}

export function describeValue(value: unknown): ShownValue {
  if (value === undefined || value === null) return { text: null, cutBytes: 0 }
  if (isCutText(value)) return { text: `${value.text}…`, cutBytes: 0 }
  const text = typeof value === 'string' ? value : JSON.stringify(value, null, 2)
  if (text.length <= MAX_VALUE_CHARS) return { text, cutBytes: 0 }
  return { text: text.slice(0, MAX_VALUE_CHARS), cutBytes: text.length - MAX_VALUE_CHARS }
}

// A value on one line, of bounded length.
export function summarizeValue(value: unknown, maxChars = 80): string {
  if (value === undefined || value === null) return 'none'
  const text = typeof value === 'string' ? value : (JSON.stringify(isCutText(value) ? value.text : value) ?? '')
  const line = text.replace(/\s+/g, ' ')
  return line.length > maxChars ? `${line.slice(0, maxChars - 1)}…` : line
}

// Reads what people type as a payload: JSON, or lines of `name: value` as in YAML. Pure.
//
// Only flat lines are read. Nested YAML is refused with its line, because a half-understood document would send
// something else than its author meant; flow style (`{a: 1}` as JSON) can be given as the value of a line.

export interface ParsedPayload {
  value: unknown
  problem: string | null
}

const LINE = /^([^\s:#][^:]*):(?:\s+(.*))?$/
const NUMBER = /^-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?$/
const WORDS: Record<string, unknown> = { true: true, false: false, null: null, '~': null }

export function parsePayload(text: string): ParsedPayload {
  const trimmed = text.trim()
  if (trimmed === '') return { value: null, problem: null }
  if (/^[[{"]/.test(trimmed)) return parseJson(trimmed)
  return parseLines(text)
}

// The same, for a place that wants names with values.
export function parseMap(text: string): ParsedPayload {
  const parsed = parsePayload(text)
  if (parsed.problem !== null) return parsed
  if (parsed.value === null) return { value: {}, problem: null }
  const isMap = typeof parsed.value === 'object' && !Array.isArray(parsed.value)
  return isMap ? parsed : { value: null, problem: 'this is no map of names to values' }
}

function parseJson(text: string): ParsedPayload {
  try {
    return { value: JSON.parse(text) as unknown, problem: null }
  } catch (error) {
    return { value: null, problem: `not JSON: ${(error as Error).message}` }
  }
}

function parseLines(text: string): ParsedPayload {
  const value: Record<string, unknown> = {}
  for (const [index, line] of text.split('\n').entries()) {
    if (line.trim() === '' || line.trimStart().startsWith('#')) continue
    const problem = addLine(value, line)
    if (problem !== null) return { value: null, problem: `line ${index + 1}: ${problem}` }
  }
  return { value, problem: null }
}

// Adds the line to the map; returns what is wrong with it.
function addLine(value: Record<string, unknown>, line: string): string | null {
  if (/^\s/.test(line) || /^-(\s|$)/.test(line)) return 'only flat lines are read here; write nested values as JSON'
  const match = LINE.exec(line.trimEnd())
  if (match === null) return 'write “name: value”'
  const name = match[1]?.trim() ?? ''
  const scalar = match[2]?.trim() ?? ''
  if (Object.hasOwn(value, name)) return `${name} is given twice`
  if (/^[[{"]/.test(scalar)) {
    const parsed = parseJson(scalar)
    value[name] = parsed.value
    return parsed.problem
  }
  if (/^[&*!|>%@`']/.test(scalar)) return `${scalar.charAt(0)} begins a form of YAML that is not read here; write JSON`
  value[name] = readScalar(scalar)
  return null
}

function readScalar(text: string): unknown {
  if (text === '') return null
  if (Object.hasOwn(WORDS, text)) return WORDS[text]
  return NUMBER.test(text) ? Number(text) : text
}

// The payload is merged over the workload, so only what differs is sent.
export function pickChanges(before: Record<string, unknown>, after: Record<string, unknown>): Record<string, unknown> {
  const entries = Object.entries(after)
  return Object.fromEntries(entries.filter(([name, value]) => JSON.stringify(before[name]) !== JSON.stringify(value)))
}

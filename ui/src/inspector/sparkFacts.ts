import { formatBytes, formatCount, formatNoun } from '../parts/format'

// What Spark told of a step, as names and texts. Pure.

export interface SparkFact {
  name: string
  text: string
}

const COUNTS: [key: string, name: string][] = [
  ['tasks', 'tasks'],
  ['stages', 'stages'],
  ['partitions', 'partitions'],
  ['files', 'files written'],
]
const SIZES: [key: string, name: string][] = [
  ['bytes_read', 'read'],
  ['bytes', 'written'],
]

// The facts that are there, in a fixed order; checks last, each with the rows that did not pass it.
export function listSparkFacts(told: Record<string, unknown>): SparkFact[] {
  const facts: SparkFact[] = []
  for (const [key, name] of COUNTS) {
    const value = told[key]
    if (typeof value === 'number') facts.push({ name, text: formatCount(value) })
  }
  for (const [key, name] of SIZES) {
    const value = told[key]
    if (typeof value === 'number') facts.push({ name, text: formatBytes(value) })
  }
  return [...facts, ...listChecks(told.expect)]
}

function listChecks(expect: unknown): SparkFact[] {
  if (typeof expect !== 'object' || expect === null) return []
  return Object.entries(expect).map(([name, failed]) => ({ name: `check ${name}`, text: describeCheck(failed) }))
}

function describeCheck(failed: unknown): string {
  if (typeof failed !== 'number') return String(failed)
  return failed === 0 ? 'every row passed' : `${formatNoun(failed, 'row')} did not pass`
}

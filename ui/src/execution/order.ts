import type { RepeatView } from '../api/types'
import { formatCount, formatNoun } from '../parts/format'

// In which order the steps of a retry or rerun run: a sequence only where it is one. Pure.

const MAX_WAYS = 6

type Way = RepeatView['ways'][number]

export function describeOrder(plan: RepeatView): string[] {
  const [first] = plan.begins
  if (plan.again.length === 0 || first === undefined) return ['No step runs again.']
  const chain = plan.begins.length === 1 ? followChain(plan, first) : plan.begins
  const joint = plan.begins.length === 1 ? ', then ' : ' and '
  const lines = [`Runs ${chain.map((step) => nameStep(plan, step)).join(joint)}.`]
  const told = new Set(plan.begins.length === 1 ? chain.slice(0, -1) : [])
  const others = joinTargets(plan.ways.filter((way) => !told.has(way.step)))
  lines.push(...others.slice(0, MAX_WAYS).map(describeWay))
  if (others.length > MAX_WAYS) lines.push(`${formatNoun(others.length - MAX_WAYS, 'more branch', 'more branches')} may follow.`)
  return lines
}

// The steps that follow each other in any case, one after the other, from the first.
function followChain(plan: RepeatView, first: string): string[] {
  const ways = new Map(plan.ways.map((way) => [way.step, way]))
  const chain = [first]
  for (;;) {
    const way = ways.get(chain.at(-1) ?? '')
    const [next] = way?.to ?? []
    const isSingle = way !== undefined && way.to.length === 1 && way.maybe.length === 0
    if (!isSingle || next === undefined || chain.includes(next)) return chain
    chain.push(next)
  }
}

function nameStep(plan: RepeatView, step: string): string {
  const items = plan.items[step]
  return items === undefined ? step : `${step} (${formatCount(items.again)} of ${formatNoun(items.total, 'item')})`
}

interface JoinedWay extends Omit<Way, 'step'> {
  steps: string[]
}

// Branches that meet again in the same step are told together.
function joinTargets(ways: readonly Way[]): JoinedWay[] {
  const joined = new Map<string, JoinedWay>()
  for (const { step, ...way } of ways) {
    const key = JSON.stringify(way)
    const known = joined.get(key)
    if (known === undefined) joined.set(key, { ...way, steps: [step] })
    else known.steps.push(step)
  }
  return [...joined.values()]
}

function describeWay({ steps, to, maybe, one, has_else: hasElse }: JoinedWay): string {
  const after = `After ${listNames(steps, 'and')}:`
  if (one && maybe.length > 1) return `${after} ${hasElse ? '' : 'at most '}one of ${listNames(maybe, 'or')}.`
  if (one && hasElse) return `${after} ${listNames(maybe, 'or')}.`
  const certain = `${listNames(to, 'and')}${to.length > 1 ? ', side by side' : ''}`
  const possible = `${listNames(maybe, 'and')}, each if its condition holds`
  if (to.length === 0) return maybe.length === 1 ? `${after} ${maybe[0]}, if its condition holds.` : `${after} ${possible}.`
  if (maybe.length === 0) return `${after} ${certain}.`
  return `${after} ${certain}; beside it ${maybe.length === 1 ? `${maybe[0]}, if its condition holds` : possible}.`
}

function listNames(names: readonly string[], joint: 'and' | 'or'): string {
  if (names.length < 2) return names.join('')
  return `${names.slice(0, -1).join(', ')} ${joint} ${names.at(-1)}`
}

import type { ChosenItems } from '../api/actions'
import type { FailureKindView, PageFailureView, PageStepView, PageView, RepeatView, WaitsView } from '../api/types'
import { canEstimate } from '../graph/facts'
import { joinCommand } from '../parts/cli'
import { formatCount, formatDuration, formatNoun, formatPercent, formatRate } from '../parts/format'
import type { ExecutionSearch, Selection } from './cursor'
import { describeOrder } from './order'

// Sentences and commands of the execution page. Pure.

// The command that shows the same: the logs, the reasons of a step as of an event, or the execution.
// `number` is that of the shown event: commands count events as the page does.
export function makePageCommand(id: string, search: ExecutionSearch, step: string | null, number: number): string {
  if (search.tab === 'logs') return joinCommand('noetl', 'exec', 'logs', id, step && '--step', step)
  const isWhole = search.step === undefined && search.at === undefined
  if (isWhole || step === null) return joinCommand('noetl', 'exec', 'get', id)
  const at = search.at === undefined ? [] : ['--at', String(number)]
  const run = search.run === undefined ? [] : ['--run', String(search.run)]
  return joinCommand('noetl', 'exec', 'explain', id, step, ...at, ...run)
}

// 100 000 items, 3 failed
export function summarizeItems(view: PageView): string | null {
  let total = 0
  let failed = 0
  for (const step of Object.values(view.steps)) {
    total += step.loop?.total ?? step.loop?.done ?? 0
    failed += step.loop?.failed ?? 0
  }
  if (total === 0) return null
  const items = formatNoun(total, 'item')
  return failed === 0 ? items : `${items}, ${formatCount(failed)} failed`
}

// The first step that waits for a person, or null.
export function findAwaitingStep(view: PageView): string | null {
  const found = Object.entries(view.steps).find(([, step]) => {
    const on = step.status === 'completed' ? undefined : step.waits?.on
    return on === 'approval' || on === 'signal'
  })
  return found?.[0] ?? null
}

export function describeStep(step: PageStepView): string {
  if (step.waits !== null && step.status !== 'completed') return describeWait(step.waits)
  if (step.error !== null) return `${step.error.code}: ${step.error.message}`
  if (step.loop !== null) return describeLoop(step)
  return step.runs > 1 ? `${formatCount(step.runs)} runs` : ''
}

export function describeLoop(step: PageStepView): string {
  const { loop } = step
  if (loop === null) return ''
  const parts = [`${formatCount(loop.ok)} ok`]
  if (loop.failed > 0) parts.push(`${formatCount(loop.failed)} failed`)
  if (loop.skipped > 0) parts.push(`${formatCount(loop.skipped)} skipped`)
  if (loop.left > 0) parts.push(`${formatCount(loop.left)} left out`)
  if (step.status === 'running' && loop.total !== null) {
    parts.push(`${formatPercent(loop.done, loop.total)} of ${formatCount(loop.total)}`)
  }
  if (step.status === 'running' && loop.rate !== null) parts.push(formatRate(loop.rate))
  if (step.status === 'running' && loop.seconds_left !== null && canEstimate(loop)) {
    parts.push(`${formatDuration(loop.seconds_left * 1000)} left`)
  }
  return parts.join(' · ')
}

export function describeWait(wait: WaitsView): string {
  switch (wait.on) {
    case 'approval':
      return 'waits for an approval'
    case 'signal':
      return `waits for the signal ${wait.name ?? ''}`.trim()
    case 'child':
      return 'waits for a child execution'
    case 'timer':
      return 'waits for a time'
    case 'retry':
      return 'waits before the next try'
    case 'worker':
      return `waits for a worker${wait.pool === null ? '' : ` of the pool ${wait.pool}`}`
    case 'place':
      return 'waits for a free place'
  }
}

// What a retry or rerun would do, one sentence a line.
export function describeRepeat(plan: RepeatView): string[] {
  const lines = describeOrder(plan)
  for (const [step, items] of Object.entries(plan.items)) {
    if (items.left > 0) lines.push(describeLeftItems(step, items.left, items.fails_again))
  }
  if (plan.inherited.length > 0) lines.push(`Inherits the results of ${plan.inherited.join(', ')}.`)
  if (plan.version !== plan.version_before) {
    lines.push(`Uses version ${plan.version ?? '–'} of the playbook instead of ${plan.version_before ?? '–'}.`)
  }
  const written = Object.entries(plan.writes_again)
  for (const [step, names] of written) lines.push(`${step} sets ${names.join(', ')} again.`)
  for (const loop of plan.changed_loops) {
    lines.push(`${loop}: only failed items run again, although its items come from another expression now.`)
  }
  return lines
}

function describeLeftItems(step: string, left: number, failsAgain: boolean): string {
  const stays = left === 1 ? 'stays' : 'stay'
  const end = failsAgain ? `, so ${step} fails even if the chosen ones succeed` : ''
  return `${formatNoun(left, 'other failed item')} of ${step} ${stays} failed${end}.`
}

export function makeRetryTitle(items: ChosenItems): string {
  const [chosen] = Object.entries(items)
  return chosen === undefined ? 'Retry what did not finish' : `Retry ${formatNoun(chosen[1].length, 'item')} of ${chosen[0]}`
}

// The command that retries the execution, or some items of one of its loops.
export function makeRetryCommand(id: string, items: ChosenItems): string {
  const [chosen] = Object.entries(items)
  if (chosen === undefined) return joinCommand('noetl', 'exec', 'retry', id)
  const [step, indexes] = chosen
  return joinCommand('noetl', 'exec', 'retry', id, '--step', step, '--item', indexes.join(','))
}

// A failure as the page shows it first: the first causal one, or the first of another kind that was chosen.
export interface ShownFailure {
  // Which of the kinds it is; -1 if it is of none that is listed.
  kind: number
  code: string
  message: string
  step: string | null
  item: number | null
  seq: number | null
}

export function chooseFailure(failure: PageFailureView, kinds: readonly FailureKindView[], selection: Selection): ShownFailure {
  const own = findOwnKind(failure, kinds)
  const chosen = kinds.findIndex((kind) => kind.step === selection.step && kind.first.item === selection.item)
  const kind = kinds[chosen]
  if (kind === undefined || chosen === own) return { ...failure, kind: own }
  return { kind: chosen, code: kind.code, step: kind.step, ...kind.first }
}

export function findOwnKind(failure: PageFailureView, kinds: readonly FailureKindView[]): number {
  const isSame = (kind: FailureKindView) => kind.step === failure.step && kind.code === failure.code
  const exact = kinds.findIndex((kind) => isSame(kind) && kind.first.item === failure.item)
  return exact === -1 ? kinds.findIndex(isSame) : exact
}

const LANE_PX = 28
const LANES_ABOVE_PX = 72
const MIN_TIMELINE_PX = 132
const MAX_TIMELINE_PX = 212

// Room for the lanes of the steps that began, within bounds: the graph needs the rest.
export function chooseTimelineHeight(view: PageView): number {
  const wanted = LANES_ABOVE_PX + LANE_PX * Object.keys(view.steps).length
  return Math.min(MAX_TIMELINE_PX, Math.max(MIN_TIMELINE_PX, wanted))
}

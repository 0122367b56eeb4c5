import { useState } from 'react'
import { Items } from '../inspector/Items'
import { lazyDialog } from '../parts/lazyDialog'
import { hasEnded } from '../parts/tone'
import { readCommandItems } from './cursor'
import type { PageState } from './page'

const RetryDialog = lazyDialog(() => import('./RetryDialog'))

// The items of the selected loop. Failed ones of its last run can be chosen to run again.
export function ItemsTab({ state, step }: { state: PageState; step: string }) {
  const [chosen, setChosen] = useState<number[] | null>(null)
  const { id, view, live, search, selection, go } = state
  const { run, item } = selection
  const isLastRun = run === null || run === (live.steps[step]?.runs ?? 0)
  const command = readCommandItems(search)
  const loop = view.steps[step]?.loop ?? null
  const failed = loop === null ? 0 : loop.failed + loop.left
  const mayRetry = failed > 0 && hasEnded(live.status) && search.at === undefined && isLastRun
  return (
    <>
      <Items
        key={command === null ? 'all' : `${command.first}+${command.count}`}
        id={id}
        step={step}
        run={run}
        failed={failed}
        selected={item}
        command={command}
        live={live.live.filter((each) => each.step === step && each.count > 0)}
        onSelect={(index) => go({ step, item: index, tab: 'items' }, true)}
        onAll={() => go({ first: undefined, count: undefined }, true)}
        onRetry={mayRetry ? setChosen : null}
      />
      {chosen !== null && <RetryDialog id={id} items={{ [step]: chosen }} onClose={() => setChosen(null)} />}
    </>
  )
}

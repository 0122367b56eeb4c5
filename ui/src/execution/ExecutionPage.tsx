import { useRouter } from '@tanstack/react-router'
import type { CSSProperties } from 'react'
import { memo, useEffect, useMemo, useState } from 'react'
import { EventsBar } from '../events/EventsBar'
import { EventsTable } from '../events/EventsTable'
import { PlaybookGraph } from '../graph'
import { announce } from '../parts/announce'
import { Button } from '../parts/Button'
import { copyText } from '../parts/Copy'
import { formatDuration, measureMs } from '../parts/format'
import { usePageCommands } from '../parts/pageCommands'
import { LoadingBar, Pane } from '../parts/Pane'
import { Problem } from '../parts/Problem'
import { hasEnded } from '../parts/tone'
import type { KeyActions } from '../parts/useKeys'
import { useKeys } from '../parts/useKeys'
import { useNow } from '../parts/useNow'
import { PHONE, useMedia } from '../parts/useMedia'
import { useTitle } from '../parts/useTitle'
import { extendTo, Timeline } from '../timeline'
import { CursorBar } from './CursorBar'
import { selectStep, showCommandItems, TABS } from './cursor'
import styles from './ExecutionPage.module.css'
import { Header } from './Header'
import type { TimeCursor } from './hooks'
import { usePageState, usePlaybookGraph, useSelectedSeq, useTimeCursor, useTimeline, useTimelineDetail } from './hooks'
import { InspectorPane } from './InspectorPane'
import { Lead } from './Lead'
import type { PageState } from './page'
import { useRestingSeq } from './page'
import { Steps } from './Steps'
import { chooseTimelineHeight, makePageCommand } from './summary'

// One execution: its failure first, then graph, timeline, events, and everything about the selected step.
export function ExecutionPage() {
  const { state, error, again, isLoading } = usePageState()
  if (state === null) {
    return (
      <div className={styles.page}>
        <h1 className="visually-hidden">Execution</h1>
        {error ? <Problem error={error} again={again} /> : <LoadingBar />}
      </div>
    )
  }
  return (
    <>
      {isLoading && <LoadingBar />}
      {error && <Problem error={error} again={again} />}
      <Panes state={state} />
    </>
  )
}

const Panes = memo(function Panes({ state }: { state: PageState }) {
  const { view, search } = state
  const isPhone = useMedia(PHONE)
  const cursor = useTimeCursor(state)
  const { data: graph } = usePlaybookGraph(view.playbook)
  useTitle(`${view.status} ${view.path}`)
  useEffect(() => announce(`${view.path} is ${view.status}`), [view.path, view.status])
  usePageKeys(state, cursor)
  const isPast = search.at !== undefined
  return (
    <div className={`${styles.page} ${styles.fills} ${isPast ? styles.past : ''}`}>
      <Header state={state} />
      <Lead state={state} />
      <div className={styles.panes} style={{ '--timeline-height': `${chooseTimelineHeight(view)}px` } as CSSProperties}>
        <GraphPane state={state} graph={graph} isPhone={isPhone} />
        {!isPhone && <TimelinePane state={state} cursor={cursor} />}
        <InspectorPane state={state} graph={graph} />
      </div>
      <EventsPane state={state} cursor={cursor} />
    </div>
  )
})

interface GraphPaneProps {
  state: PageState
  graph: ReturnType<typeof usePlaybookGraph>['data']
  isPhone: boolean
}

function GraphPane({ state, graph, isPhone }: GraphPaneProps) {
  const [wantsList, setWantsList] = useState(false)
  const { view, search, selection, go } = state
  const isList = isPhone || wantsList
  const select = (step: string) => go(selectStep(search, step))
  const head = !isPhone && (
    <div className={styles.controls} role="group" aria-label="steps as">
      <Button aria-pressed={!isList} onClick={() => setWantsList(false)}>
        Graph
      </Button>
      <Button aria-pressed={isList} onClick={() => setWantsList(true)}>
        List
      </Button>
    </div>
  )
  return (
    <Pane name="steps" head={head} className={styles.graph}>
      {isList && <Steps state={state} graph={graph} onSelect={select} />}
      {!isList && graph && (
        <PlaybookGraph
          graph={graph}
          steps={view.steps}
          arcs={view.arcs}
          selected={selection.step}
          onSelect={select}
          direction="LR"
        />
      )}
    </Pane>
  )
}

function TimelinePane({ state, cursor }: { state: PageState; cursor: TimeCursor }) {
  const [foldIdle, setFoldIdle] = useState(false)
  const { view, live, search, selection, go } = state
  const { data, error, isFetching, refetch } = useTimeline(state)
  const detail = useTimelineDetail(state, data?.exact !== false)
  const { from, to } = search
  const window = from === undefined || to === undefined ? null : { from, to }
  const now = useNow(hasEnded(live.status) ? null : 1000)
  const shown = useMemo(() => (data === undefined || live.ended_at !== null ? data : extendTo(data, now)), [data, live.ended_at, now])
  const length = measureMs(live.started_at, live.ended_at, now)
  const head = (
    <>
      <span>{length === null ? '' : formatDuration(length)}</span>
      <Button aria-pressed={foldIdle} onClick={() => setFoldIdle(!foldIdle)}>
        Fold idle
      </Button>
      {window && <Button onClick={() => go({ from: undefined, to: undefined }, true)}>Whole</Button>}
      <CursorBar state={state} cursor={cursor} />
    </>
  )
  return (
    <Pane name="timeline" head={head} className={styles.timeline} isLoading={isFetching && data === undefined}>
      {error && <Problem error={error} again={() => void refetch()} />}
      {shown && live.started_at && (
        <Timeline
          data={shown}
          detail={detail}
          window={window}
          startedAt={live.started_at}
          endedAt={live.ended_at}
          cursorAt={search.at === undefined ? null : view.at}
          selected={selection.step}
          onSelect={(step) => go(selectStep(search, step))}
          onCommand={(span) => go(showCommandItems(search, span.step, span.run, span))}
          onCursor={cursor.toMoment}
          onWindow={(start, end, isWhole) => go(isWhole ? { from: undefined, to: undefined } : { from: start, to: end }, true)}
          foldIdle={foldIdle}
        />
      )}
    </Pane>
  )
}

function EventsPane({ state, cursor }: { state: PageState; cursor: TimeCursor }) {
  const { id, live, search, showEvent, go } = state
  const shownSeq = useRestingSeq(state)
  const selectedSeq = useSelectedSeq(state)
  const filter = { group: search.group, step: search.only, text: search.text }
  const head = (
    <EventsBar
      filter={filter}
      steps={Object.keys(live.steps)}
      total={live.events}
      onChange={(next) => go({ group: next.group, only: next.step, text: next.text }, true)}
    />
  )
  return (
    <Pane name="events" head={head} className={styles.events}>
      <EventsTable
        key={JSON.stringify(filter)}
        id={id}
        filter={filter}
        startedAt={live.started_at}
        lastSeq={live.last_seq}
        selected={selectedSeq}
        cursor={shownSeq}
        onSelect={showEvent}
        onCursor={cursor.toNumber}
      />
    </Pane>
  )
}

function usePageKeys(state: PageState, cursor: TimeCursor): void {
  const { id, view, search, selection, go } = state
  const router = useRouter()
  const leave = () => (router.history.canGoBack() ? router.history.back() : void router.navigate({ to: '/executions', search: {} }))
  const tabs = TABS.map((tab, index) => [String(index + 1), () => go({ tab }, true)] as const)
  const copyCommand = () => void copyText(makePageCommand(id, search, selection.step, view.number), 'command copied')
  usePageCommands([{ label: 'copy as CLI', hint: 'y', refusal: null, run: copyCommand }])
  const keys: KeyActions = {
    ...Object.fromEntries(tabs),
    '[': () => cursor.toLandmark(-1),
    ']': () => cursor.toLandmark(1),
    '{': () => cursor.toEvent(-1),
    '}': () => cursor.toEvent(1),
    l: () => cursor.toNumber(null),
    f: cursor.toNextFailure,
    y: copyCommand,
    Escape: () => {
      if (search.event !== undefined) go({ event: undefined }, true)
      else if (search.at !== undefined) cursor.toNumber(null)
      else leave()
    },
  }
  useKeys(keys)
}

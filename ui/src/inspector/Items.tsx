import { useQuery } from '@tanstack/react-query'
import { useState } from 'react'
import type { ItemsPageView, LiveCommandView } from '../api/types'
import { askItems } from '../api/queries'
import { Button, LinkButton } from '../parts/Button'
import { Empty } from '../parts/Empty'
import { formatCommandItems, formatCount } from '../parts/format'
import { Problem } from '../parts/Problem'
import { TypedField } from '../parts/TypedField'
import { useRefusal } from '../parts/useRefusal'
import { findCommandItems } from './commandItems'
import styles from './Inspector.module.css'
import { ItemBars } from './ItemBars'
import { ItemDetail, ItemRow } from './ItemRow'
import { LiveItems } from './LiveItems'

const STATUSES = ['failed', 'ok', 'skipped', 'all']
const MAX_CHOSEN_ITEMS = 200
const MAX_COMMAND_ITEMS = 10_000

export interface ItemsProps {
  id: string
  step: string
  run: number | null
  failed: number
  selected: number | null
  // Only the items of this command; null: those of all.
  command: { first: number; count: number } | null
  // Commands of the loop that have not ended.
  live: LiveCommandView[]
  onSelect: (item: number) => void
  onAll: () => void
  // Runs these failed items again; null: that is not possible now.
  onRetry: ((items: number[]) => void) | null
}

interface Page {
  after: string | number | undefined
}

// The items of a loop, a page at a time; the failed ones first, grouped by kind.
export function Items({ id, step, run, failed, selected, command, live, onSelect, onAll, onRetry }: ItemsProps) {
  const [status, setStatus] = useState(failed > 0 && command === null ? 'failed' : 'all')
  const [text, setText] = useState('')
  const [pages, setPages] = useState<Page[]>([{ after: undefined }])
  const marks = useMarks()
  const after = pages.at(-1)?.after
  const part = command === null ? {} : { first: command.first, count: Math.min(command.count, MAX_COMMAND_ITEMS) }
  const filter = { run: run ?? undefined, status, q: text || undefined, after, ...part }
  const { data, error, refetch } = useQuery(askItems(id, step, filter))
  const restart = () => setPages([{ after: undefined }])
  const chosen = data?.items.find((item) => item.index === selected)
  return (
    <div className={styles.body}>
      {command && <CommandHead command={command} items={data?.items ?? []} onAll={onAll} />}
      {command && <ItemBars id={id} step={step} run={run} command={command} onSelect={onSelect} />}
      {command === null && <LiveItems commands={live} />}
      <div className={styles.bar}>
        <select
          aria-label="which items"
          value={status}
          onChange={(event) => {
            setStatus(event.target.value)
            restart()
          }}
        >
          {STATUSES.map((each) => (
            <option key={each}>{each}</option>
          ))}
        </select>
        <TypedField
          label="items with the text"
          placeholder="index or text"
          value={text}
          onChange={(value) => {
            setText(value)
            restart()
          }}
        />
        {data && <Counts items={data} />}
      </div>
      {error && <Problem error={error} again={() => void refetch()} />}
      {data && status === 'failed' && command === null && <Kinds items={data} onSelect={onSelect} />}
      {onRetry && <ChosenBar chosen={marks.chosen} onRetry={onRetry} onClear={marks.clear} />}
      {chosen && <ItemDetail item={chosen} />}
      {data?.items.length === 0 && <Empty>No item is like that.</Empty>}
      {data && data.items.length > 0 && (
        <ul className={styles.items} aria-label="items">
          {data.items.map((item) => (
            <ItemRow
              key={item.index}
              item={item}
              isSelected={item.index === selected}
              onSelect={onSelect}
              isMarked={marks.chosen.has(item.index)}
              onMark={onRetry === null ? null : marks.toggle}
            />
          ))}
        </ul>
      )}
      <div className={styles.bar}>
        {pages.length > 1 && <Button onClick={() => setPages(pages.slice(0, -1))}>before</Button>}
        {data?.next != null && <Button onClick={() => setPages([...pages, { after: data.next ?? undefined }])}>next</Button>}
      </div>
    </div>
  )
}

// The items that are marked, on this page of the list and on others.
function useMarks() {
  const [chosen, setChosen] = useState<ReadonlySet<number>>(new Set())
  const toggle = (item: number) => {
    const next = new Set(chosen)
    if (!next.delete(item)) next.add(item)
    setChosen(next)
  }
  return { chosen, toggle, clear: () => setChosen(new Set()) }
}

interface CommandHeadProps {
  command: { first: number; count: number }
  items: ItemsPageView['items']
  onAll: () => void
}

function CommandHead({ command, items, onAll }: CommandHeadProps) {
  return (
    <div className={styles.bar}>
      <strong>{formatCommandItems(findCommandItems(command, items))}</strong>
      <span className={styles.faint}>of one command</span>
      <LinkButton onClick={onAll}>all items</LinkButton>
    </div>
  )
}

interface ChosenBarProps {
  chosen: ReadonlySet<number>
  onRetry: (items: number[]) => void
  onClear: () => void
}

function ChosenBar({ chosen, onRetry, onClear }: ChosenBarProps) {
  const refusal = useRefusal()
  if (chosen.size === 0) return null
  const isTooMany = chosen.size > MAX_CHOSEN_ITEMS
  return (
    <div className={styles.bar} role="group" aria-label="chosen items">
      <strong>{formatCount(chosen.size)} chosen</strong>
      <Button icon="retry" refusal={refusal} disabled={isTooMany} onClick={() => onRetry([...chosen].sort((a, b) => a - b))}>
        Retry these…
      </Button>
      <Button look="quiet" onClick={onClear}>
        Clear
      </Button>
      {isTooMany && <span className={styles.faint}>{formatCount(MAX_CHOSEN_ITEMS)} at most</span>}
    </div>
  )
}

function Counts({ items }: { items: ItemsPageView }) {
  const parts = [`${formatCount(items.ok)} ok`, `${formatCount(items.failed)} failed`]
  if (items.skipped > 0) parts.push(`${formatCount(items.skipped)} skipped`)
  return <span className={styles.faint}>{parts.join(' · ')}</span>
}

function Kinds({ items, onSelect }: { items: ItemsPageView; onSelect: (item: number) => void }) {
  if (items.kinds.length === 0) return null
  return (
    <ul className={styles.kinds} aria-label="kinds of failures">
      {items.kinds.map((kind) => (
        <li key={`${kind.code} ${kind.shape}`} className={styles.kind}>
          <strong>{formatCount(kind.count)} ×</strong>
          <span className={styles.code}>{kind.code}</span>
          <span>{kind.shape}</span>
          {kind.first !== null && <FirstItem index={kind.first} onSelect={onSelect} />}
        </li>
      ))}
    </ul>
  )
}

function FirstItem({ index, onSelect }: { index: number; onSelect: (item: number) => void }) {
  return <LinkButton onClick={() => onSelect(index)}>first: {formatCount(index)}</LinkButton>
}

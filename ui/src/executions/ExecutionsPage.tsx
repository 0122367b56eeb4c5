import { useQuery } from '@tanstack/react-query'
import { Link, useNavigate, useSearch } from '@tanstack/react-router'
import { useState } from 'react'
import type { ExecutionsView } from '../api/types'
import { askCounts, askExecutions } from '../api/queries'
import { copyText } from '../parts/Copy'
import { Empty } from '../parts/Empty'
import { formatCount, formatDate } from '../parts/format'
import { LoadingBar } from '../parts/Pane'
import { Problem } from '../parts/Problem'
import { useKeys } from '../parts/useKeys'
import { useTitle } from '../parts/useTitle'
import { BulkBar } from './BulkBar'
import styles from './Executions.module.css'
import type { ListSearch } from './filter'
import { hasFilter, makeListCommand, makeListFilter } from './filter'
import { Chips, FilterBar, WindowSelect } from './FilterBar'
import { Histogram } from './Histogram'
import { useLiveList } from './hooks'
import { Rows } from './Rows'
import { useRowKeys } from './useRowKeys'
import { WaitsForMe } from './WaitsForMe'

const HISTOGRAM_BUCKETS = 60

// What failed and what waits, then everything, newest first.
export function ExecutionsPage() {
  const search = useSearch({ from: '/executions' })
  const navigate = useNavigate({ from: '/executions' })
  const change = (next: ListSearch) => void navigate({ search: next, replace: true })
  const filter = makeListFilter(search)
  const { data, error, isFetching, refetch } = useQuery(askExecutions(filter))
  const { path, since, until, roots } = filter
  const { data: counts } = useQuery(askCounts({ path, since, until, roots }, HISTOGRAM_BUCKETS))
  useLiveList(filter)
  useTitle('Executions')
  useKeys({ y: () => void copyText(makeListCommand(search), 'command copied') })
  return (
    <div className={styles.page}>
      <div className={styles.head}>
        <h1>Executions</h1>
        <WindowSelect search={search} onChange={change} />
        {counts && (
          <Histogram
            histogram={counts.histogram}
            onSelect={(from, to) => change({ ...search, since: from, until: to, before: undefined })}
          />
        )}
      </div>
      <Chips search={search} onChange={change} counts={counts?.counts} />
      <FilterBar search={search} onChange={change} />
      <WaitsForMe />
      {isFetching && <LoadingBar />}
      {error && <Problem error={error} again={() => void refetch()} />}
      {data && <List data={data} search={search} />}
    </div>
  )
}

function List({ data, search }: { data: ExecutionsView; search: ListSearch }) {
  const [selected, setSelected] = useState<ReadonlySet<string>>(new Set())
  const rows = data.executions
  const toggle = (id: string) => {
    const next = new Set(selected)
    if (!next.delete(id)) next.add(id)
    setSelected(next)
  }
  const toggleAll = () => {
    const isAll = rows.every((row) => selected.has(row.execution_id))
    setSelected(new Set(isAll ? [] : rows.map((row) => row.execution_id)))
  }
  const clear = () => setSelected(new Set())
  useRowKeys(toggle, clear)
  if (rows.length === 0) return <NoRows search={search} />
  return (
    <>
      <Rows rows={rows} selected={selected} onToggle={toggle} onToggleAll={toggleAll} />
      <BulkBar rows={rows.filter((row) => selected.has(row.execution_id))} onClear={clear} />
      <Foot data={data} search={search} />
    </>
  )
}

function Foot({ data, search }: { data: ExecutionsView; search: ListSearch }) {
  const last = data.executions.at(-1)
  return (
    <nav className={styles.foot} aria-label="pages of the list">
      {search.before !== undefined && (
        <Link to="/executions" search={{ ...search, before: undefined }}>
          newest
        </Link>
      )}
      {data.next !== null && (
        <Link to="/executions" search={{ ...search, before: data.next }}>
          older
        </Link>
      )}
      {last?.started_at && <span>back to {formatDate(last.started_at)}</span>}
      {search.q !== undefined && data.looked_at != null && <span>looked at the newest {formatCount(data.looked_at)}</span>}
    </nav>
  )
}

function NoRows({ search }: { search: ListSearch }) {
  if (!hasFilter(search)) {
    return <Empty command="noetl run examples/hello.yaml">Nothing has run yet. This command starts an execution, and it appears here:</Empty>
  }
  return (
    <Empty>
      No execution is like that.{' '}
      <Link to="/executions" search={{}}>
        Show all executions
      </Link>
    </Empty>
  )
}

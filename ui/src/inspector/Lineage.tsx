import { useQuery } from '@tanstack/react-query'
import { Link } from '@tanstack/react-router'
import { askTrace } from '../api/queries'
import { joinCommand } from '../parts/cli'
import { CopyAsCli } from '../parts/Copy'
import { Empty } from '../parts/Empty'
import { formatBytes, formatCount, formatNoun, shortenId } from '../parts/format'
import { Problem } from '../parts/Problem'
import styles from './Inspector.module.css'
import type { SourceRow } from './sources'
import { groupSources } from './sources'

interface LineageProps {
  id: string
  step: string
  // Only the part of a loop's result that has this item; null: the whole result.
  item: number | null
}

// What the result was made of, nearest first, across executions.
export function Lineage({ id, step, item }: LineageProps) {
  const { data, error, refetch } = useQuery(askTrace(id, step, item))
  if (error) return <Problem error={error} again={() => void refetch()} />
  if (data === undefined) return null
  if (data.nodes.length === 0) return <Empty>The step has no stored result.</Empty>
  return (
    <div className={styles.body}>
      <div className={styles.bar}>
        {item !== null && <strong>item {formatCount(item)}</strong>}
        <span className={styles.faint}>{formatNoun(data.nodes.length, 'payload')}, nearest first</span>
        <CopyAsCli command={joinCommand('noetl', 'trace', id, step)} />
      </div>
      <ol aria-label="sources">
        {groupSources(data.nodes).map((source) => (
          <Source key={source.key} source={source} id={id} />
        ))}
      </ol>
      {data.next !== null && <p className={styles.faint}>and more</p>}
    </div>
  )
}

function Source({ source, id }: { source: SourceRow; id: string }) {
  const { node, payloads, rows, bytes } = source
  return (
    <li className={styles.node} style={{ paddingLeft: Math.min(node.depth, 8) * 12 }}>
      <Link to="/executions/$id" params={{ id: node.execution_id }} search={{ step: node.step, tab: 'data' }}>
        {node.step}
      </Link>
      {node.execution_id !== id && <span className={styles.faint}>of {shortenId(node.execution_id)}</span>}
      <span>{payloads === 1 ? node.kind : `${formatCount(payloads)} ${node.kind}s`}</span>
      {node.tool?.kind && <span className={styles.faint}>{node.tool.kind}</span>}
      {rows !== null && <span>{formatNoun(rows, 'row')}</span>}
      {bytes !== null && <span>{formatBytes(bytes)}</span>}
      <span className={styles.faint}>{node.expired_at === null ? node.tier : 'expired'}</span>
    </li>
  )
}

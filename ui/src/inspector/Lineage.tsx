import { useQuery } from '@tanstack/react-query'
import { Link } from '@tanstack/react-router'
import type { NodeView } from '../api/types'
import { askTrace } from '../api/queries'
import { joinCommand } from '../parts/cli'
import { CopyAsCli } from '../parts/Copy'
import { Empty } from '../parts/Empty'
import { formatBytes, formatNoun, shortenId } from '../parts/format'
import { Problem } from '../parts/Problem'
import styles from './Inspector.module.css'

// What the result was made of, nearest first, across executions.
export function Lineage({ id, step }: { id: string; step: string }) {
  const { data, error, refetch } = useQuery(askTrace(id, step))
  if (error) return <Problem error={error} again={() => void refetch()} />
  if (data === undefined) return null
  if (data.nodes.length === 0) return <Empty>The step has no stored result.</Empty>
  return (
    <div className={styles.body}>
      <div className={styles.bar}>
        <span className={styles.faint}>{formatNoun(data.nodes.length, 'payload')}, nearest first</span>
        <CopyAsCli command={joinCommand('noetl', 'trace', id, step)} />
      </div>
      <ol aria-label="sources">
        {data.nodes.map((node) => (
          <Source key={node.ref_id} node={node} id={id} />
        ))}
      </ol>
      {data.next !== null && <p className={styles.faint}>and more</p>}
    </div>
  )
}

function Source({ node, id }: { node: NodeView; id: string }) {
  return (
    <li className={styles.node} style={{ paddingLeft: Math.min(node.depth, 8) * 12 }}>
      <Link to="/executions/$id" params={{ id: node.execution_id }} search={{ step: node.step, tab: 'data' }}>
        {node.step}
      </Link>
      {node.execution_id !== id && <span className={styles.faint}>of {shortenId(node.execution_id)}</span>}
      <span>{node.kind}</span>
      {node.tool?.kind && <span className={styles.faint}>{node.tool.kind}</span>}
      {node.rows !== null && <span>{formatNoun(node.rows, 'row')}</span>}
      {node.bytes !== null && <span>{formatBytes(node.bytes)}</span>}
      <span className={styles.faint}>{node.expired_at === null ? node.tier : 'expired'}</span>
    </li>
  )
}

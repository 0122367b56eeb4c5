import type { NodeView } from '../api/types'

// Payloads of a loop that only differ in their items are one row of the lineage. Pure.

export interface SourceRow {
  key: string
  node: NodeView
  payloads: number
  rows: number | null
  bytes: number | null
}

export function groupSources(nodes: readonly NodeView[]): SourceRow[] {
  const groups = new Map<string, SourceRow>()
  for (const node of nodes) {
    const key = JSON.stringify([node.depth, node.execution_id, node.step, node.kind, node.task, node.tier, node.expired_at === null])
    const known = groups.get(key)
    if (known === undefined) {
      groups.set(key, { key, node, payloads: 1, rows: node.rows, bytes: node.bytes })
      continue
    }
    known.payloads += 1
    known.rows = addKnown(known.rows, node.rows)
    known.bytes = addKnown(known.bytes, node.bytes)
  }
  return [...groups.values()]
}

function addKnown(left: number | null, right: number | null): number | null {
  return left === null || right === null ? null : left + right
}

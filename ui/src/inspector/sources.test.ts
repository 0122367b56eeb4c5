import { expect, test } from 'vitest'
import type { NodeView } from '../api/types'
import { groupSources } from './sources'

const node = (changes: Partial<NodeView>) =>
  ({ depth: 0, execution_id: '7', step: 'score', kind: 'result', task: 'chunk', tier: 'kv', expired_at: null, rows: 10, bytes: 400, ...changes }) as NodeView

test('parts of a loop are one row, with their sums', () => {
  const rows = groupSources([node({}), node({ rows: 5 }), node({ step: 'plan', depth: 1, rows: 15 })])
  expect(rows.map((row) => [row.node.step, row.payloads, row.rows, row.bytes])).toEqual([
    ['score', 2, 15, 800],
    ['plan', 1, 15, 400],
  ])
})

test('another execution, depth or kind is another row; unknown sizes stay unknown', () => {
  expect(groupSources([node({}), node({ execution_id: '8' }), node({ kind: 'collection' })])).toHaveLength(3)
  expect(groupSources([node({}), node({ bytes: null })])[0]).toMatchObject({ payloads: 2, bytes: null })
})

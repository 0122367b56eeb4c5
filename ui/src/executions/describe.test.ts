import { expect, test } from 'vitest'
import type { ListedExecutionView } from '../api/types'
import { describeRow } from './describe'

const row = (changes: Partial<ListedExecutionView>) =>
  ({ status: 'running', error: null, recovered: 0, ...changes }) as ListedExecutionView

test('a failed row says its error', () => {
  expect(describeRow(row({ status: 'failed', error: 'score: PYTHON_ERROR' }))).toEqual({
    look: 'error',
    text: 'score: PYTHON_ERROR',
  })
})

test('a row that waits says for what', () => {
  const waits = { on: 'approval', step: 'ask', name: null, since: null, question: {}, by: 'ada' }
  expect(describeRow(row({ waits_for: waits })).text).toBe('ask waits for an approval')
  const asked = { ...waits, question: { amount: 1030 } }
  expect(describeRow(row({ waits_for: asked })).text).toBe('ask waits for an approval: amount 1030')
})

test('a running loop says how far it is', () => {
  const progress = { step: 'load', done: 40, total: 100, failed: 2 }
  expect(describeRow(row({ progress })).text).toBe('load 40 % of 100, 2 failed')
})

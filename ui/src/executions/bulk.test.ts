import { expect, test } from 'vitest'
import type { ListedExecutionView } from '../api/types'
import { planBulk } from './bulk'

const rows = [
  { execution_id: '1', status: 'failed' },
  { execution_id: '2', status: 'running' },
  { execution_id: '3', status: 'completed' },
] as ListedExecutionView[]

test('only failed and cancelled executions are retried', () => {
  const plan = planBulk('retry', rows)
  expect(plan.ids).toEqual(['1'])
  expect(plan.leftOut).toBe(2)
  expect(plan.title).toBe('Retry 1 execution?')
})

test('only live executions are cancelled', () => {
  expect(planBulk('cancel', rows).ids).toEqual(['2'])
})

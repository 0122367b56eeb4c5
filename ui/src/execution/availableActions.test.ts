import { expect, test } from 'vitest'
import { listActions } from './availableActions'

test('an execution that lives is paused, resumed and cancelled', () => {
  expect(listActions('running', false)).toEqual(['pause', 'cancel', 'signal'])
  expect(listActions('paused', false)).toEqual(['resume', 'cancel', 'signal'])
  expect(listActions('cancelling', true)).toEqual(['signal'])
})

test('one that has ended is run again; what failed in it is retried', () => {
  expect(listActions('completed', false)).toEqual(['rerun'])
  expect(listActions('completed', true)).toEqual(['rerun', 'retry'])
  expect(listActions('failed', false)).toEqual(['rerun', 'retry'])
})

import { expect, test } from 'vitest'
import type { RepeatView } from '../api/types'
import { describeOrder } from './order'

type Way = RepeatView['ways'][number]

const way = (step: string, changes: Partial<Way>): Way => ({ step, to: [], maybe: [], one: false, has_else: false, ...changes })
const tell = (begins: string[], ways: Way[], again = ['any']) => describeOrder({ begins, again, ways, items: {} } as unknown as RepeatView)

test('steps that follow each other are a sequence', () => {
  expect(tell(['a'], [way('a', { to: ['b'] }), way('b', { to: ['c'] })])).toEqual(['Runs a, then b, then c.'])
})

test('an exclusive choice names one step, not a sequence', () => {
  const ways = [way('a', { to: ['decide'] }), way('decide', { maybe: ['ship', 'refuse'], one: true, has_else: true })]
  expect(tell(['a'], ways)).toEqual(['Runs a, then decide.', 'After decide: one of ship or refuse.'])
  const open = [way('decide', { maybe: ['ship', 'refuse'], one: true })]
  expect(tell(['decide'], open)[1]).toBe('After decide: at most one of ship or refuse.')
})

test('parallel branches run side by side and meet again', () => {
  const ways = [
    way('receive', { to: ['stock'], maybe: ['credit', 'customs'] }),
    way('stock', { to: ['decide'] }),
    way('credit', { to: ['decide'] }),
    way('customs', { to: ['decide'] }),
  ]
  expect(tell(['receive'], ways)).toEqual([
    'Runs receive.',
    'After receive: stock; beside it credit and customs, each if its condition holds.',
    'After stock, credit and customs: decide.',
  ])
  expect(tell(['a'], [way('a', { to: ['b', 'c'] })])[1]).toBe('After a: b and c, side by side.')
})

test('a guarded step may follow', () => {
  expect(tell(['a'], [way('a', { maybe: ['b'], one: true })])).toEqual(['Runs a.', 'After a: b, if its condition holds.'])
})

test('a cycle ends the sequence', () => {
  expect(tell(['a'], [way('a', { to: ['b'] }), way('b', { to: ['a'] })])).toEqual(['Runs a, then b.', 'After b: a.'])
})

test('several first steps run beside each other', () => {
  expect(tell(['a', 'b'], [way('a', { to: ['c'] }), way('b', { to: ['c'] })])).toEqual(['Runs a and b.', 'After a and b: c.'])
  expect(tell([], [], [])).toEqual(['No step runs again.'])
})

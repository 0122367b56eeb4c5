import { expect, test } from 'vitest'
import { isEmptySide } from './dataSides'

test('nothing, an empty map and an empty list are no input', () => {
  for (const value of [null, undefined, {}, []]) expect(isEmptySide({ reference: null, value })).toBe(true)
})

test('a value and a stored payload are', () => {
  for (const value of [0, '', false, { n: 1 }, [1]]) expect(isEmptySide({ reference: null, value })).toBe(false)
  expect(isEmptySide({ reference: { ref_id: '7' }, value: null })).toBe(false)
})

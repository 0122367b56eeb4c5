import { expect, test } from 'vitest'
import type { ItemView } from '../api/types'
import { findCommandItems } from './commandItems'

const item = (index: number) => ({ index }) as ItemView

test('items of a first run are those of the address', () => {
  const found = findCommandItems({ first: 20, count: 10 }, [item(20), item(29)])
  expect(found).toEqual({ first: 20, count: 10, repeats: false, indexes: null })
})

test('failed items that run again are named by their indexes in the loop', () => {
  const found = findCommandItems({ first: 0, count: 3 }, [item(5), item(3), item(17)])
  expect(found).toMatchObject({ repeats: true, indexes: [3, 17] })
})

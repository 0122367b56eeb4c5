import { expect, test } from 'vitest'
import { makeCells } from './rows'

const preview = { row_count: 2, value: null, cut: false }

test('rows are maps, lists or single values', () => {
  const columns = [
    { name: 'a', type: 'int64' },
    { name: 'b', type: null },
  ]
  expect(makeCells({ ...preview, columns, rows: [{ a: 1, b: 'x' }, [2, { c: 3 }]] })?.rows).toEqual([
    ['1', 'x'],
    ['2', '{"c":3}'],
  ])
  expect(makeCells({ ...preview, columns: [], rows: [7, 'x'] })?.rows).toEqual([['7'], ['x']])
})

test('a value without rows has no cells', () => {
  expect(makeCells({ ...preview, columns: [], rows: null })).toBeNull()
})

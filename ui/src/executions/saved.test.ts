import { expect, test } from 'vitest'
import { addFilter, parseFilters } from './saved'

test('what the browser kept is checked', () => {
  expect(parseFilters(null)).toEqual([])
  expect(parseFilters('{')).toEqual([])
  expect(parseFilters('[{"name": "mine", "search": {"status": "failed"}}, 7, null]')).toEqual([
    { name: 'mine', search: { status: 'failed' } },
  ])
})

test('a filter of the same name is replaced', () => {
  const filters = addFilter([{ name: 'mine', search: {} }], { name: 'mine', search: { status: 'failed' } })
  expect(filters).toEqual([{ name: 'mine', search: { status: 'failed' } }])
})

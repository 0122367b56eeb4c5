import { expect, test } from 'vitest'
import { parseMap, parsePayload, pickChanges } from './payload'

test('JSON is read as JSON', () => {
  expect(parsePayload('{"n": 3, "deep": {"a": [1]}}')).toEqual({ value: { n: 3, deep: { a: [1] } }, problem: null })
  expect(parsePayload('[1, 2]').value).toEqual([1, 2])
})

test('flat lines are read as YAML reads them', () => {
  const text = '# sizes\nn: 100000\nmode: full\nratio: 0.5\ndry: true\nnone:\nlist: [1, 2]\nname: "7"\nzip: 007\n'
  expect(parsePayload(text).value).toEqual({
    n: 100000,
    mode: 'full',
    ratio: 0.5,
    dry: true,
    none: null,
    list: [1, 2],
    name: '7',
    zip: '007',
  })
})

test.each([
  ['a: 1\n  b: 2', 'line 2'],
  ['- a', 'line 1'],
  ['a: 1\na: 2', 'twice'],
  ['a: |', 'not read here'],
  ['a: {b: 1}', 'not JSON'],
  ['just words', 'name: value'],
  ['{"a": ', 'not JSON'],
])('%j is refused with a reason', (text, reason) => {
  expect(parsePayload(text).problem).toContain(reason)
})

test('nothing typed is no payload, and an empty map where a map is wanted', () => {
  expect(parsePayload(' \n')).toEqual({ value: null, problem: null })
  expect(parseMap('')).toEqual({ value: {}, problem: null })
  expect(parseMap('[1]').problem).toContain('no map')
})

test('only what differs is sent', () => {
  const before = { n: 3, list: [1], mode: 'full' }
  expect(pickChanges(before, { n: 4, list: [1], extra: null })).toEqual({ n: 4, extra: null })
  expect(pickChanges(before, before)).toEqual({})
})

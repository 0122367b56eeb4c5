import { expect, test } from 'vitest'
import type { PreviewView, ResultReferenceView } from '../api/types'
import { isSmallResult, summarizeResult } from './smallResult'

const reference = (changes: Partial<ResultReferenceView>) => ({ bytes: 40, format: 'json', ...changes }) as ResultReferenceView
const preview = (changes: Partial<PreviewView>) => ({ rows: null, row_count: null, value: null, cut: false, ...changes }) as PreviewView

test('only results of a few bytes are shown on top', () => {
  expect(isSmallResult(reference({}))).toBe(true)
  expect(isSmallResult(reference({ bytes: 100_000 }))).toBe(false)
  expect(isSmallResult(reference({ bytes: null }))).toBe(false)
  expect(isSmallResult(reference({ format: 'manifest' }))).toBe(false)
})

test('a value and rows are one line', () => {
  expect(summarizeResult(preview({ value: { text: 'Hello' } }))).toBe('{"text":"Hello"}')
  expect(summarizeResult(preview({ rows: [{ a: 1 }, { a: 2 }], row_count: 2 }))).toBe('{"a":1}  {"a":2}')
  expect(summarizeResult(preview({ rows: [{ a: 1 }], row_count: 9 }))).toBe('{"a":1} …')
  expect(summarizeResult(preview({ rows: [] }))).toBeNull()
  expect(summarizeResult(preview({}))).toBeNull()
})

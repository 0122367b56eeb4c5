import { expect, test } from 'vitest'
import { namesEntry } from './replaced'

test('a document with another script is another version of the page', () => {
  const text = '<script type="module" crossorigin src="/assets/index-Ab1.js"></script>'
  expect(namesEntry(text, '/assets/index-Ab1.js')).toBe(true)
  expect(namesEntry(text, '/assets/index-Zz9.js')).toBe(false)
  expect(namesEntry(text, '')).toBe(true)
})

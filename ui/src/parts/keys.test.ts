import { expect, test } from 'vitest'
import { isTyping, KEY_HELP, readKey, SEQUENCE_MS } from './keys'

const plain = (key: string) => ({ key, ctrlKey: false, metaKey: false, altKey: false })

test('a single key is named at once', () => {
  expect(readKey(plain(']'), null, 0)).toEqual({ name: ']', pending: null })
})

test('g waits for the second key of its sequence', () => {
  const first = readKey(plain('g'), null, 100)
  expect(first).toEqual({ name: null, pending: { prefix: 'g', at: 100 } })
  expect(readKey(plain('e'), first.pending, 400)).toEqual({ name: 'g e', pending: null })
})

test('a second key that comes late counts alone', () => {
  const first = readKey(plain('g'), null, 100)
  expect(readKey(plain('e'), first.pending, 101 + SEQUENCE_MS)).toEqual({ name: 'e', pending: null })
})

test('keys of the browser are left to it', () => {
  expect(readKey({ ...plain('f'), ctrlKey: true }, null, 0).name).toBeNull()
  expect(readKey({ ...plain('l'), metaKey: true }, null, 0).name).toBeNull()
})

test('what is typed into a field is no command', () => {
  expect(isTyping('INPUT', false, 'text')).toBe(true)
  expect(isTyping('INPUT', false, 'checkbox')).toBe(false)
  expect(isTyping('DIV', true, null)).toBe(true)
  expect(isTyping('BUTTON', false, null)).toBe(false)
})

test('no key is listed twice', () => {
  const keys = KEY_HELP.map((help) => help.keys)
  expect(new Set(keys).size).toBe(keys.length)
})

import { expect, test } from 'vitest'
import { offerCommands } from './commands'

test('an id opens its execution first', () => {
  const [first] = offerCommands('724551830122291200')
  expect(first?.go).toEqual({ to: 'execution', id: '724551830122291200' })
})

test('a word searches the list, and finds commands', () => {
  const offers = offerCommands('dark')
  expect(offers[0]?.go).toEqual({ to: 'executions', search: { q: 'dark' } })
  expect(offers[1]?.go).toEqual({ to: 'theme', choice: 'dark' })
})

test('without a text all commands are offered', () => {
  expect(offerCommands(' ').length).toBeGreaterThan(5)
})

test('commands of the page on the screen come first', () => {
  const cancel = { label: 'Cancel…', hint: 'this execution', refusal: null, run: () => undefined }
  expect(offerCommands('', [cancel])[0]?.label).toBe('Cancel…')
  expect(offerCommands('canc', [cancel])[0]?.go).toEqual({ to: 'page', run: cancel.run })
  const refused = { ...cancel, refusal: 'your role may only look' }
  expect(offerCommands('canc', [refused])[0]).toMatchObject({ hint: 'your role may only look', refusal: 'your role may only look' })
})

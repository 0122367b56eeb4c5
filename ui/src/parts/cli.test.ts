import { expect, test } from 'vitest'
import { joinCommand } from './cli'

test('words that a shell would change are quoted', () => {
  expect(joinCommand('noetl', 'exec', 'list', '--path', 'etl/*')).toBe("noetl exec list --path 'etl/*'")
  expect(joinCommand('noetl', 'exec', 'get', '7245')).toBe('noetl exec get 7245')
})

test('a quote in a word does not end it', () => {
  expect(joinCommand('noetl', 'signal', '1', `it's; rm -rf`)).toBe(`noetl signal 1 'it'\\''s; rm -rf'`)
})

test('missing words are left out', () => {
  expect(joinCommand('noetl', null, false, 'run')).toBe('noetl run')
})

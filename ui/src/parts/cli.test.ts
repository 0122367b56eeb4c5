import { expect, test } from 'vitest'
import { joinCommand, makeApprovalCommand, makeSignalCommand } from './cli'

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

test('the dialogs that answer an execution name their commands', () => {
  expect(makeApprovalCommand('7', 'ask', true, ' ')).toBe('noetl exec approve 7 ask')
  expect(makeApprovalCommand('7', 'ask', false, 'not on a Friday')).toBe("noetl exec reject 7 ask --comment 'not on a Friday'")
  expect(makeSignalCommand('7', 'go', null)).toBe('noetl signal 7 go')
  expect(makeSignalCommand('7', 'go', { by: 'ada' })).toBe(`noetl signal 7 go --payload '{"by":"ada"}'`)
})

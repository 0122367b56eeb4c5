import { expect, test } from 'vitest'
import { parseSearch, stringifySearch } from '../parts/search'
import { hasFilter, makeListCommand, makeListFilter, readListSearch, toggleStatus } from './filter'

test('an address survives reading and writing', () => {
  const text = '?status=failed,running&path=etl/score&since=2026-01-02T03:04:05Z&q=bad+checksum'
  expect(stringifySearch({ ...readListSearch(parseSearch(text)) })).toBe(text)
})

test('an id in the address stays a text', () => {
  expect(readListSearch(parseSearch('?q=724551830122291200')).q).toBe('724551830122291200')
})

test('statuses are added and taken out', () => {
  const failed = toggleStatus({}, 'failed')
  expect(failed.status).toBe('failed')
  expect(toggleStatus(failed, 'running').status).toBe('failed,running')
  expect(toggleStatus(failed, 'failed').status).toBeUndefined()
})

test('waiting stands alone', () => {
  const waiting = toggleStatus({ status: 'failed,running' }, 'waiting')
  expect(waiting.status).toBe('waiting')
  expect(makeListFilter(waiting)).toMatchObject({ waiting: true, status: undefined })
  expect(toggleStatus(waiting, 'failed').status).toBe('failed')
})

test('another filter begins at the newest page', () => {
  expect(toggleStatus({ before: '12' }, 'failed').before).toBeUndefined()
})

test('an empty search is no filter', () => {
  expect(hasFilter(readListSearch({}))).toBe(false)
  expect(hasFilter(readListSearch({ status: 'failed' }))).toBe(true)
})

test('the command asks for the same', () => {
  const command = makeListCommand({ status: 'failed', path: 'etl/*' })
  expect(command).toBe("noetl exec list --status failed --path 'etl/*'")
})

test('a search for words and for what waits is a command too', () => {
  expect(makeListCommand({ q: 'bad checksum', until: '1h' })).toBe("noetl exec list --until 1h --search 'bad checksum'")
  expect(makeListCommand({ status: 'waiting' })).toBe('noetl exec list --waiting')
})

test('children of an execution are asked for by its id', () => {
  const search = readListSearch(parseSearch('?parent=724551830122291200'))
  expect(makeListFilter(search).parent).toBe('724551830122291200')
  expect(makeListCommand(search)).toBe('noetl exec list --parent 724551830122291200')
})

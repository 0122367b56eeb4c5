import { describe, expect, test } from 'vitest'
import {
  formatAge,
  formatBytes,
  formatCommandItems,
  formatCount,
  formatDuration,
  formatNoun,
  formatOffset,
  formatPercent,
  formatRate,
  measureMs,
  shortenId,
} from './format'

describe('formatDuration', () => {
  test.each([
    [0.25, '0.25 ms'],
    [536, '536 ms'],
    [999.6, '1.00 s'],
    [6210, '6.21 s'],
    [42_000, '42.0 s'],
    [59_999, '1 min 00 s'],
    [247_000, '4 min 07 s'],
    [7_500_000, '2 h 05 min'],
    [3_599_900, '1 h 00 min'],
    [273_600_000, '3 d 04 h'],
    [-5, '0 ms'],
    [Number.NaN, '–'],
  ])('%d ms is %s', (ms, text) => {
    expect(formatDuration(ms)).toBe(text)
  })
})

test('counts have narrow spaces, and a plus where counting stopped', () => {
  expect(formatCount(999)).toBe('999')
  expect(formatCount(100000)).toBe('100\u202f000')
  expect(formatCount(1234567)).toBe('1\u202f234\u202f567')
  expect(formatCount(10000, true)).toBe('10\u202f000+')
})

test('a noun has its plural', () => {
  expect(formatNoun(1, 'item')).toBe('1 item')
  expect(formatNoun(3, 'item')).toBe('3 items')
  expect(formatNoun(2, 'try', 'tries')).toBe('2 tries')
})

test('bytes are decimal', () => {
  expect(formatBytes(812)).toBe('812 B')
  expect(formatBytes(7_340_032)).toBe('7.34 MB')
  expect(formatBytes(123_000_000)).toBe('123 MB')
})

test('a slow rate is told per minute or hour', () => {
  expect(formatRate(16_000)).toBe('16\u202f000/s')
  expect(formatRate(1.25)).toBe('1.3/s')
  expect(formatRate(0.5)).toBe('30/min')
  expect(formatRate(0.01)).toBe('36/h')
})

test('nothing is 100 % before all of it is', () => {
  expect(formatPercent(99_997, 100_000)).toBe('99 %')
  expect(formatPercent(5, 5)).toBe('100 %')
  expect(formatPercent(0, 0)).toBe('0 %')
})

test('an offset counts from the start', () => {
  expect(formatOffset('2026-01-02T03:04:07.150Z', '2026-01-02T03:04:05.000Z')).toBe('+2.15 s')
  expect(formatOffset('2026-01-02T03:04:07.150Z', null)).toBe('')
})

test('an age is short', () => {
  const now = Date.parse('2026-01-02T03:10:00Z')
  expect(formatAge('2026-01-02T03:09:58Z', now)).toBe('now')
  expect(formatAge('2026-01-02T03:09:30Z', now)).toBe('30 s ago')
  expect(formatAge('2026-01-02T03:07:00Z', now)).toBe('3 min ago')
})

test('a long id keeps both ends', () => {
  expect(shortenId('724551830122291200')).toBe('7245…1200')
  expect(shortenId('12345')).toBe('12345')
})

test('what has not ended is measured until now', () => {
  expect(measureMs('2026-01-02T03:00:00Z', null, Date.parse('2026-01-02T03:00:02Z'))).toBe(2000)
  expect(measureMs(null, null, 0)).toBeNull()
})

test('failed items that run again are named by their indexes in the loop', () => {
  const again = { first: 0, count: 3, repeats: true }
  expect(formatCommandItems({ ...again, indexes: [3, 17] })).toBe('3 items of 3–17')
  expect(formatCommandItems({ ...again, count: 1, indexes: [17, 17] })).toBe('item 17')
  expect(formatCommandItems({ ...again, indexes: null })).toBe('3 failed items')
})

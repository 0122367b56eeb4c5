import { describe, expect, test } from 'vitest'
import type { ToldEventView } from '../api/types'
import { findPlaceAfter, findPlaceBefore, findRow, isOutside, joinPages, makeFirstPlace, makePage } from './pages'

const event = (seq: number, number: number) => ({ seq, number }) as ToldEventView
const answer = (events: ToldEventView[], next: number | null) => ({ events, next, looked_at: events.length })

test('the first page ends with the anchor, or at the end of the log', () => {
  expect(makeFirstPlace(71, 500)).toEqual({ before: 72 })
  expect(makeFirstPlace(null, 500)).toEqual({ before: 501 })
})

describe('from a page in the middle', () => {
  const middle = makePage(answer([event(30, 12), event(71, 31)], 30), { before: 72 }, 500)

  test('both directions go on', () => {
    expect(findPlaceBefore([middle])).toEqual({ before: 30 })
    expect(findPlaceAfter([middle], 500)).toEqual({ after: 71 })
  })

  test('pages below go on where the server says', () => {
    const below = makePage(answer([event(80, 32)], 80), { after: 71 }, 500)
    expect(findPlaceAfter([middle, below], 500)).toEqual({ after: 80 })
  })

  test('a page above that was dropped is asked for again', () => {
    const below = makePage(answer([event(80, 32)], 80), { after: 71 }, 500)
    expect(findPlaceBefore([below])).toEqual({ before: 72 })
  })
})

test('the beginning of the log is the end of the way up', () => {
  expect(findPlaceBefore([makePage(answer([event(3, 1)], 3), { before: 72 }, 500)])).toBeUndefined()
  expect(findPlaceBefore([makePage(answer([], null), { before: 72 }, 500)])).toBeUndefined()
})

test('new events are asked for when the log has grown', () => {
  const last = makePage(answer([event(80, 32)], null), { after: 71 }, 80)
  expect(findPlaceAfter([last], 80)).toBeUndefined()
  expect(findPlaceAfter([last], 95)).toEqual({ after: 80 })
})

test('events that do not match the filter are not asked for again', () => {
  const empty = makePage(answer([], null), { after: 80 }, 95)
  expect(findPlaceAfter([empty], 95)).toBeUndefined()
  expect(findPlaceAfter([empty], 99)).toEqual({ after: 95 })
})

test('small neighbours are joined, large ones are not', () => {
  const first = makePage(answer([event(1, 1), event(2, 2)], null), { before: 3 }, 2)
  const second = makePage(answer([event(3, 3)], null), { after: 2 }, 3)
  const third = makePage(answer([event(4, 4), event(5, 5)], null), { after: 3 }, 5)
  const joined = joinPages([first, second, third], 3)
  expect(joined.map((page) => page.events.map((each) => each.seq))).toEqual([[1, 2, 3], [4, 5]])
  expect(joined[0]).toMatchObject({ above: null, below: 3 })
  expect(findPlaceAfter(joined, 9)).toEqual({ after: 5 })
})

test('an event is found among rows, or the last one before it', () => {
  const rows = [event(10, 1), event(20, 2), event(30, 3)]
  expect(findRow(rows, 20)).toBe(1)
  expect(findRow(rows, 25)).toBe(1)
  expect(findRow(rows, 31)).toBe(-1)
  expect(isOutside(rows, 9)).toBe(true)
  expect(isOutside([], 9)).toBe(false)
})

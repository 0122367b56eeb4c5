import { afterEach, beforeEach, expect, test, vi } from 'vitest'
import { makeThrottle } from './throttle'

beforeEach(() => {
  vi.useFakeTimers()
  vi.stubGlobal('document', { hidden: false })
})

afterEach(() => {
  vi.useRealTimers()
  vi.unstubAllGlobals()
})

test('what is asked for often is done once', () => {
  const work = vi.fn()
  const throttle = makeThrottle(work, 1000)
  throttle.ask()
  throttle.ask()
  vi.advanceTimersByTime(1000)
  expect(work).toHaveBeenCalledTimes(1)
})

test('what was asked for is done at the finish, and not again', () => {
  const work = vi.fn()
  const throttle = makeThrottle(work, 1000)
  throttle.ask()
  throttle.finish()
  vi.advanceTimersByTime(1000)
  expect(work).toHaveBeenCalledTimes(1)
})

test('without a question the finish does nothing', () => {
  const work = vi.fn()
  makeThrottle(work, 1000).finish()
  expect(work).not.toHaveBeenCalled()
})

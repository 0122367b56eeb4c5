import { expect, test } from 'vitest'
import { choosePlace } from './signIn'

test.each([
  [undefined, '/executions'],
  ['', '/executions'],
  ['/executions/7?step=a', '/executions/7?step=a'],
  ['//evil.example', '/executions'],
  ['/\\evil.example', '/executions'],
  ['https://evil.example', '/executions'],
  ['javascript:alert(1)', '/executions'],
  ['/login?code=x', '/executions'],
])('after signing in, %s leads to %s', (next, place) => {
  expect(choosePlace(next)).toBe(place)
})

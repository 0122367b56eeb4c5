import { expect, test } from 'vitest'
import type { SessionView } from '../api/types'
import { findRefusal } from './permits'

const session = (roles: string[], permissions: string[]) => ({ roles, permissions }) as SessionView

test('a viewer is told why nothing can be changed', () => {
  expect(findRefusal(session(['viewer'], ['read']))).toContain('your role (viewer) may only look')
})

test('others are not refused, nor anybody before the session is known', () => {
  expect(findRefusal(session(['operator'], ['read', 'operate']))).toBeNull()
  expect(findRefusal(undefined)).toBeNull()
})

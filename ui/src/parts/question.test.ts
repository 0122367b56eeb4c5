import { expect, test } from 'vitest'
import { describeQuestion, splitQuestion } from './question'

test('a question has its text first, then its fields', () => {
  const question = { amount: 1030, message: 'Ship it?', who: 'finance', urgent: true, note: null }
  expect(describeQuestion(question)).toBe('Ship it? · amount 1030 · who finance · urgent true · note none')
})

test('a question without a text or without fields has none', () => {
  expect(splitQuestion({})).toEqual({ message: null, fields: [] })
  expect(splitQuestion({ message: 'Go?' })).toEqual({ message: 'Go?', fields: [] })
  expect(splitQuestion({ who: 'ada' })).toEqual({ message: null, fields: [['who', 'ada']] })
})

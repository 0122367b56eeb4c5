import { expect, test } from 'vitest'
import { describeStatus, getLook, hasEnded } from './tone'

const STATUSES = ['pending', 'running', 'paused', 'cancelling', 'quarantined', 'completed', 'failed', 'cancelled']
const STEP_STATUSES = ['waiting', 'running', 'completed', 'failed', 'skipped', 'cancelled', 'inherited', 'not_reached']

test('statuses of one tone differ in shape or word', () => {
  for (const statuses of [STATUSES, STEP_STATUSES]) {
    const looks = statuses.map(getLook)
    const marks = looks.map((look) => `${look.tone} ${look.shape} ${look.word}`)
    expect(new Set(marks).size).toBe(statuses.length)
  }
})

test('an unknown status keeps its word', () => {
  expect(getLook('held_back')).toEqual({ tone: 'idle', shape: 'dotted-ring', word: 'held back' })
})

test('an execution that was set aside has not ended', () => {
  expect(STATUSES.filter(hasEnded)).toEqual(['completed', 'failed', 'cancelled'])
})

test('what runs and waits for a person has the words of both filters', () => {
  expect(describeStatus('running', true)).toEqual({ status: 'waiting', word: 'running, waiting' })
  expect(describeStatus('running', false)).toEqual({ status: 'running', word: 'running' })
  expect(describeStatus('paused', true)).toEqual({ status: 'paused', word: 'paused' })
})

import { describe, expect, it } from 'vitest'
import { parseMoment } from './moments'

describe('moment', () => {
  it.each(['2024-05-01T12:00:07Z', '2024-05-01T12:00:07.250Z', '1999-12-31T23:59:59.999Z', '2024-05-01T12:00:00.000Z'])(
    'of %s is what Date says',
    (text) => expect(parseMoment(text)).toBe(Date.parse(text)),
  )

  it('keeps microseconds', () => {
    expect(parseMoment('2024-05-01T12:00:07.250125Z') - Date.parse('2024-05-01T12:00:07.250Z')).toBeCloseTo(0.125, 3)
  })

  it('knows other spellings', () => {
    expect(parseMoment('2024-05-01T12:00:07+02:00')).toBe(Date.parse('2024-05-01T10:00:07Z'))
    expect(parseMoment('nonsense')).toBeNaN()
  })
})

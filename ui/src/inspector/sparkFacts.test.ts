import { expect, it } from 'vitest'
import { listSparkFacts } from './sparkFacts'

it('counts, sizes and checks are listed in a fixed order', () => {
  const told = { bytes: 812, files: 3, stages: 2, tasks: 1_200, bytes_read: 0, operation: 'x', expect: { priced: 12, known: 0 } }
  expect(listSparkFacts(told)).toEqual([
    { name: 'tasks', text: '1\u202f200' },
    { name: 'stages', text: '2' },
    { name: 'files written', text: '3' },
    { name: 'read', text: '0 B' },
    { name: 'written', text: '812 B' },
    { name: 'check priced', text: '12 rows did not pass' },
    { name: 'check known', text: 'every row passed' },
  ])
})

it('what is missing is left out', () => {
  expect(listSparkFacts({})).toEqual([])
})

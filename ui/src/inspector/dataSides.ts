import type { ShownDataView } from '../api/types'

// A side without data gives its room to the other one. Pure.
export function isEmptySide({ reference, value }: Pick<ShownDataView, 'reference' | 'value'>): boolean {
  if (reference !== null) return false
  if (value == null) return true
  return typeof value === 'object' && Object.keys(value).length === 0
}

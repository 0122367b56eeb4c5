import type { ItemView } from '../api/types'
import type { CommandItems } from '../parts/format'

// The items of a command, as the address names them: their place in the loop, or among the failed items that run again. The listed
// items tell which: they have the indexes of the loop. Pure.
export function findCommandItems(command: { first: number; count: number }, items: readonly ItemView[]): CommandItems {
  const { first, count } = command
  const indexes = items.map((item) => item.index)
  const repeats = indexes.some((index) => index < first || index >= first + count)
  const bounds = repeats ? [Math.min(...indexes), Math.max(...indexes)] : null
  return { first, count, repeats, indexes: bounds }
}

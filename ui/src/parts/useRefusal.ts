import { useQuery } from '@tanstack/react-query'
import { askSession } from '../api/queries'
import { findRefusal } from './permits'

// Why the caller may not change executions; null: they may.
export function useRefusal(): string | null {
  return findRefusal(useQuery(askSession()).data)
}

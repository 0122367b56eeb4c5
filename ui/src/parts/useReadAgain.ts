import { useQueryClient } from '@tanstack/react-query'

// Everything on the screen is read again after somebody changed something.
export function useReadAgain() {
  const client = useQueryClient()
  return () => client.invalidateQueries()
}

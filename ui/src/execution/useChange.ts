import { useMutation, useQueryClient } from '@tanstack/react-query'
import type { Change } from '../api/actions'
import { changeExecution } from '../api/actions'

// Cancels, pauses, resumes or releases the execution, then reads it again.
export function useChange(id: string, onSuccess?: () => void) {
  const client = useQueryClient()
  return useMutation({
    mutationFn: (change: Change) => changeExecution(id, change),
    onSuccess,
    onSettled: () => client.invalidateQueries({ queryKey: ['view', id, null] }),
  })
}

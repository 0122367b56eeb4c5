import { QueryClient } from '@tanstack/react-query'
import { CallFailed } from './call'

const MAX_RETRIES = 2

// What the server refused stays refused; only a server that does not answer is asked again.
function mayAskAgain(count: number, error: unknown): boolean {
  const status = error instanceof CallFailed ? error.problem.status : 0
  const isTransient = status === 0 || status === 503
  return isTransient && count < MAX_RETRIES
}

// What the pages know of the server. There is no other store.
export const client = new QueryClient({
  defaultOptions: {
    queries: { retry: mayAskAgain, refetchOnWindowFocus: true, refetchIntervalInBackground: false, staleTime: 1000 },
  },
})

import { CSPProvider } from '@base-ui/react/csp-provider'
import { QueryClientProvider } from '@tanstack/react-query'
import { RouterProvider } from '@tanstack/react-router'
import { client } from './api/client'
import { readNonce } from './parts/nonce'
import { router } from './routes'

export function App() {
  return (
    <CSPProvider nonce={readNonce()}>
      <QueryClientProvider client={client}>
        <RouterProvider router={router} />
      </QueryClientProvider>
    </CSPProvider>
  )
}

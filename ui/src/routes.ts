import { createRootRoute, createRoute, createRouter, lazyRouteComponent, redirect } from '@tanstack/react-router'
import { client } from './api/client'
import { askView } from './api/queries'
import { readExecutionSearch } from './execution/cursor'
import { readListSearch } from './executions/filter'
import { parseSearch, readText, stringifySearch } from './parts/search'
import { BrokenPage } from './shell/BrokenPage'
import { NoPage } from './shell/NoPage'
import { Shell } from './shell/Shell'

// All addresses of the pages, with the types of their search parameters. A page is loaded when it is opened.

const root = createRootRoute({ component: Shell, notFoundComponent: NoPage })

const home = createRoute({
  getParentRoute: () => root,
  path: '/',
  beforeLoad: () => {
    throw redirect({ to: '/executions', search: {} })
  },
})

const executions = createRoute({
  getParentRoute: () => root,
  path: '/executions',
  component: lazyRouteComponent(() => import('./executions/ExecutionsPage'), 'ExecutionsPage'),
  validateSearch: readListSearch,
})

const execution = createRoute({
  getParentRoute: () => root,
  path: '/executions/$id',
  component: lazyRouteComponent(() => import('./execution/ExecutionPage'), 'ExecutionPage'),
  validateSearch: readExecutionSearch,
  // Asked while the page itself is loaded; the page waits for it by itself.
  loader: ({ params }) => void client.prefetchQuery(askView(params.id, null)),
  // Not asked again when the selection or the time changes.
  staleTime: Number.POSITIVE_INFINITY,
})

const login = createRoute({
  getParentRoute: () => root,
  path: '/login',
  component: lazyRouteComponent(() => import('./login/LoginPage'), 'LoginPage'),
  validateSearch: (search: Record<string, unknown>) => ({ code: readText(search.code), next: readText(search.next) }),
})

export const router = createRouter({
  routeTree: root.addChildren([home, executions, execution, login]),
  parseSearch,
  stringifySearch,
  defaultPreload: false,
  defaultErrorComponent: BrokenPage,
})

declare module '@tanstack/react-router' {
  interface Register {
    router: typeof router
  }
}

// A caller without a session is led to the page that opens one, and back.

export const SIGN_IN_PATH = '/login'

// Leaves the page for the sign-in page, which leads back to this address. On the sign-in page itself nothing happens.
export function askToSignIn(): void {
  if (location.pathname === SIGN_IN_PATH) return
  const here = `${location.pathname}${location.search}`
  location.assign(`${SIGN_IN_PATH}?next=${encodeURIComponent(here)}`)
}

// The place to go after signing in: a path of this server, never another site.
export function choosePlace(next: string | undefined): string {
  if (next === undefined || !/^\/(?![/\\])/.test(next) || next.startsWith(SIGN_IN_PATH)) return '/executions'
  return next
}

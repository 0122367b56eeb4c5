// Work that can wait until the page has been drawn.

const FIRST_PAUSE_MS = 1500
const MAX_WAIT_MS = 5000

// Does the work once the page has been drawn and the browser has nothing else to do, and not while the tab is hidden.
export function whenIdle(work: () => void): void {
  const run = () => {
    if (document.hidden) document.addEventListener('visibilitychange', run, { once: true })
    else work()
  }
  const wait = () => {
    if ('requestIdleCallback' in window) window.requestIdleCallback(run, { timeout: MAX_WAIT_MS })
    else run()
  }
  setTimeout(wait, FIRST_PAUSE_MS)
}

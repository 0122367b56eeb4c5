export interface Throttle {
  ask: () => void
  finish: () => void
}

// Runs the work at most once per interval after it is asked for, and not while the tab is hidden. `finish` does at once what was asked
// for: the last change would be missed otherwise.
export function makeThrottle(work: () => unknown, intervalMs: number): Throttle {
  let timer: ReturnType<typeof setTimeout> | null = null
  const run = () => {
    timer = null
    if (!document.hidden) work()
  }
  return {
    ask: () => {
      timer ??= setTimeout(run, intervalMs)
    },
    finish: () => {
      if (timer === null) return
      clearTimeout(timer)
      run()
    },
  }
}

import { useEffect, useState } from 'react'

// The time, kept fresh while the tab is visible. Null: it stands still.
export function useNow(intervalMs: number | null): number {
  const [now, setNow] = useState(Date.now)
  useEffect(() => {
    if (intervalMs === null) return
    const timer = setInterval(() => {
      if (!document.hidden) setNow(Date.now())
    }, intervalMs)
    return () => clearInterval(timer)
  }, [intervalMs])
  return now
}

import { useEffect, useState } from 'react'

// The value once it has stayed the same for a while and nothing else is on its way. What costs a request follows it, and not every step on
// the way.
export function useResting<Value extends string | number | null>(value: Value, restMs: number, isMoving: () => boolean): Value {
  const [resting, setResting] = useState(value)
  useEffect(() => {
    const settle = () => {
      if (isMoving()) timer = setTimeout(settle, restMs)
      else setResting(value)
    }
    let timer = setTimeout(settle, restMs)
    return () => clearTimeout(timer)
  }, [value, restMs, isMoving])
  return resting
}

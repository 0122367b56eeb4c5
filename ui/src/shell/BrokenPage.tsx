import type { ErrorComponentProps } from '@tanstack/react-router'
import { Problem } from '../parts/Problem'

export function BrokenPage({ error, reset }: ErrorComponentProps) {
  return (
    <>
      <h1 className="visually-hidden">This page is broken</h1>
      <Problem error={error} again={reset} />
    </>
  )
}

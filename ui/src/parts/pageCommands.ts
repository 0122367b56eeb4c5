import { useEffect, useRef } from 'react'

// What the page on the screen offers in the search field, beside the commands of all pages.
export interface PageCommand {
  label: string
  hint: string
  // Why it cannot be run now; null: it can.
  refusal: string | null
  run: () => void
}

type Source = () => readonly PageCommand[]

const sources = new Set<Source>()

export function listPageCommands(): PageCommand[] {
  return [...sources].flatMap((list) => list())
}

// Offers these commands while the component is shown.
export function usePageCommands(commands: readonly PageCommand[]): void {
  const current = useRef(commands)
  useEffect(() => {
    current.current = commands
  })
  useEffect(() => {
    const list = () => current.current
    sources.add(list)
    return () => {
      sources.delete(list)
    }
  }, [])
}

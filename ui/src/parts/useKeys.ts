import { useEffect, useRef } from 'react'
import type { Pending } from './keys'
import { isTyping, readKey } from './keys'

export type KeyActions = Record<string, (() => void) | undefined>

function isOpen(): boolean {
  return document.querySelector('[role="dialog"],[role="alertdialog"],[role="menu"]') !== null
}

// Runs the action of a key while the component is shown. Nothing runs while somebody types or a dialog is open.
export function useKeys(actions: KeyActions): void {
  const current = useRef(actions)
  useEffect(() => {
    current.current = actions
  })
  useEffect(() => {
    let pending: Pending | null = null
    const onKey = (event: KeyboardEvent) => {
      const target = event.target as HTMLElement
      const inputType = target instanceof HTMLInputElement ? target.type : null
      if (event.defaultPrevented || isTyping(target.tagName, target.isContentEditable, inputType) || isOpen()) return
      const step = readKey(event, pending, event.timeStamp)
      pending = step.pending
      const action = step.name === null ? undefined : current.current[step.name]
      if (action === undefined) return
      if (step.name === 'Enter' && isControl(target)) return
      event.preventDefault()
      action()
    }
    document.addEventListener('keydown', onKey)
    return () => document.removeEventListener('keydown', onKey)
  }, [])
}

// Enter on a focused button or link presses that, and nothing else.
function isControl(target: HTMLElement): boolean {
  return target.closest('a,button,summary,[role="tab"],[role="button"]') !== null
}

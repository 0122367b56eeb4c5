import { useEffect, useState } from 'react'
import { announce } from './announce'
import { Button, IconButton } from './Button'

const SHOWN_MS = 1500

export async function copyText(text: string, what = 'copied'): Promise<void> {
  await navigator.clipboard.writeText(text)
  announce(what)
}

function useCopied(text: string) {
  const [isCopied, setCopied] = useState(false)
  useEffect(() => {
    if (!isCopied) return
    const timer = setTimeout(() => setCopied(false), SHOWN_MS)
    return () => clearTimeout(timer)
  }, [isCopied])
  const copy = () => void copyText(text).then(() => setCopied(true))
  return { isCopied, copy }
}

export function CopyButton({ text, label }: { text: string; label: string }) {
  const { isCopied, copy } = useCopied(text)
  return <IconButton icon={isCopied ? 'check' : 'copy'} label={isCopied ? 'copied' : label} onClick={copy} />
}

// Copies the command of the CLI that does or shows the same as this place of the page.
export function CopyAsCli({ command }: { command: string }) {
  const { isCopied, copy } = useCopied(command)
  return (
    <Button look="quiet" icon={isCopied ? 'check' : 'copy'} title={`copy as CLI (y)\n${command}`} onClick={copy}>
      {isCopied ? 'copied' : 'CLI'}
    </Button>
  )
}

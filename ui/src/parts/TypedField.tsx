import { useEffect, useState } from 'react'

const TYPING_PAUSE_MS = 250

interface TypedFieldProps {
  className?: string | undefined
  label: string
  placeholder: string
  value: string
  onChange: (value: string) => void
}

// A field that reports what was typed after a short pause.
export function TypedField({ className, label, placeholder, value, onChange }: TypedFieldProps) {
  const [text, setText] = useState(value)
  useEffect(() => setText(value), [value])
  useEffect(() => {
    if (text === value) return
    const timer = setTimeout(() => onChange(text.trim()), TYPING_PAUSE_MS)
    return () => clearTimeout(timer)
  }, [text])
  return (
    <input
      type="search"
      className={className}
      aria-label={label}
      placeholder={placeholder}
      value={text}
      onChange={(event) => setText(event.target.value)}
    />
  )
}

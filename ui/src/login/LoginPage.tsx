import { useSearch } from '@tanstack/react-router'
import type { FormEvent } from 'react'
import { useEffect, useRef, useState } from 'react'
import type { Proof } from '../api/actions'
import { hasSession, listSignInWays, signIn } from '../api/actions'
import { choosePlace } from '../api/signIn'
import { Button, makeButtonClass } from '../parts/Button'
import { Empty } from '../parts/Empty'
import { Problem } from '../parts/Problem'
import { useTitle } from '../parts/useTitle'
import styles from './LoginPage.module.css'

// Opens a session: with a name and a password, with a token, or with the code of a link that `noetl ui` made.
export function LoginPage() {
  const { code, next } = useSearch({ from: '/login' })
  const [error, setError] = useState<unknown>(null)
  const [isBusy, setBusy] = useState(code !== undefined)
  useTitle('Sign in')
  const open = (proof: Proof) => {
    setBusy(true)
    const go = () => location.replace(choosePlace(next))
    signIn(proof).then(go, async (problem: unknown) => {
      // A link that was used by this browser: a reload, or the way back.
      if ('code' in proof && (await hasSession())) return go()
      setBusy(false)
      setError(problem)
    })
  }
  useCodeOnce(code, (text) => open({ code: text }))
  return (
    <div className={styles.page}>
      <h1 className={styles.title}>NoETL</h1>
      {isBusy && <p role="status">signing in…</p>}
      {error !== null && <Problem error={error} />}
      {!isBusy && <IssuerLink next={choosePlace(next)} />}
      {!isBusy && <PasswordForm onPassword={(name, password) => open({ name, password })} />}
      {!isBusy && <TokenForm onToken={(token) => open({ token })} />}
      <Empty command="noetl ui">On the machine of the server, this command opens the page signed in.</Empty>
    </div>
  )
}

// A code works once, so it is used once.
function useCodeOnce(code: string | undefined, use: (code: string) => void): void {
  const isUsed = useRef(false)
  useEffect(() => {
    if (code === undefined || isUsed.current) return
    isUsed.current = true
    use(code)
  })
}

// Leads to the issuer that signs users in, if the server has one.
function IssuerLink({ next }: { next: string }) {
  const [label, setLabel] = useState<string | null>(null)
  useEffect(() => {
    listSignInWays().then(
      (ways) => setLabel(ways.issuer),
      () => setLabel(null),
    )
  }, [])
  if (label === null) return null
  return (
    <a className={makeButtonClass('primary')} href={`/api/oidc/start?next=${encodeURIComponent(next)}`}>
      Continue with {label}
    </a>
  )
}

function PasswordForm({ onPassword }: { onPassword: (name: string, password: string) => void }) {
  const [name, setName] = useState('')
  const [password, setPassword] = useState('')
  const submit = (event: FormEvent) => {
    event.preventDefault()
    if (name.trim() !== '' && password !== '') onPassword(name.trim(), password)
  }
  return (
    <form className={styles.form} onSubmit={submit}>
      <Field label="name" name="username" type="text" complete="username" isFirst value={name} onChange={setName} />
      <Field
        label="password"
        name="password"
        type="password"
        complete="current-password"
        value={password}
        onChange={setPassword}
      />
      <Button look="primary" type="submit">
        Sign in
      </Button>
    </form>
  )
}

function TokenForm({ onToken }: { onToken: (token: string) => void }) {
  const [token, setToken] = useState('')
  const submit = (event: FormEvent) => {
    event.preventDefault()
    if (token.trim() !== '') onToken(token.trim())
  }
  return (
    <form className={styles.form} onSubmit={submit}>
      <Field label="token" name="token" type="password" complete="off" value={token} onChange={setToken} />
      <Button type="submit">Use the token</Button>
    </form>
  )
}

interface FieldProps {
  label: string
  name: string
  type: 'text' | 'password'
  complete: string
  isFirst?: boolean
  value: string
  onChange: (text: string) => void
}

function Field({ label, name, type, complete, isFirst = false, value, onChange }: FieldProps) {
  return (
    <label className={styles.label}>
      {label}
      <input
        className={styles.field}
        type={type}
        name={name}
        autoComplete={complete}
        autoFocus={isFirst}
        autoCapitalize="none"
        spellCheck={false}
        value={value}
        onChange={(event) => onChange(event.target.value)}
      />
    </label>
  )
}

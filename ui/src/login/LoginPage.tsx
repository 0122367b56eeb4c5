import { useSearch } from '@tanstack/react-router'
import type { FormEvent } from 'react'
import { useEffect, useRef, useState } from 'react'
import { hasSession, signIn } from '../api/actions'
import { choosePlace } from '../api/signIn'
import { Button } from '../parts/Button'
import { Empty } from '../parts/Empty'
import { Problem } from '../parts/Problem'
import { useTitle } from '../parts/useTitle'
import styles from './LoginPage.module.css'

// Opens a session: with the code of a link that `noetl ui` made, or with a token.
export function LoginPage() {
  const { code, next } = useSearch({ from: '/login' })
  const [error, setError] = useState<unknown>(null)
  const [isBusy, setBusy] = useState(code !== undefined)
  useTitle('Sign in')
  const open = (proof: { code: string } | { token: string }) => {
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

function TokenForm({ onToken }: { onToken: (token: string) => void }) {
  const [token, setToken] = useState('')
  const submit = (event: FormEvent) => {
    event.preventDefault()
    if (token.trim() !== '') onToken(token.trim())
  }
  return (
    <form className={styles.form} onSubmit={submit}>
      <label className={styles.label}>
        token
        <input
          className={styles.field}
          type="password"
          name="token"
          autoComplete="off"
          autoFocus
          spellCheck={false}
          value={token}
          onChange={(event) => setToken(event.target.value)}
        />
      </label>
      <Button look="primary" type="submit">
        Sign in
      </Button>
    </form>
  )
}

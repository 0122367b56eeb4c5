import { skipToken, useQuery } from '@tanstack/react-query'
import { Link, Outlet, useLocation, useNavigate } from '@tanstack/react-router'
import { useState } from 'react'
import { signOut } from '../api/actions'
import { askSession, askWaiting, MAX_WAITING_ROWS } from '../api/queries'
import type { Connection } from '../api/stream'
import { askToSignIn, SIGN_IN_PATH } from '../api/signIn'
import { CONNECTION_KEY } from '../api/stream'
import { Button, IconButton, LinkButton } from '../parts/Button'
import { formatClock, formatCount } from '../parts/format'
import { lazyDialog } from '../parts/lazyDialog'
import { chooseTheme, readThemeChoice } from '../parts/theme'
import { useKeys } from '../parts/useKeys'
import styles from './Shell.module.css'

const CommandDialog = lazyDialog(() => import('./CommandDialog'))
const KeysDialog = lazyDialog(() => import('./KeysDialog'))

type OpenDialog = 'commands' | 'keys' | null

// What all pages have around them: names of the pages, search, who waits, the theme, and the strip while nobody answers.
export function Shell() {
  const path = useLocation({ select: (location) => location.pathname })
  return path === SIGN_IN_PATH ? <BareShell /> : <FullShell />
}

// Nobody has signed in yet, so there is nothing to ask the server for.
function BareShell() {
  return (
    <main id="main" className={styles.main} tabIndex={-1}>
      <Outlet />
    </main>
  )
}

function FullShell() {
  const [dialog, setDialog] = useState<OpenDialog>(null)
  const navigate = useNavigate()
  const close = () => setDialog(null)
  useKeys({
    '/': () => setDialog('commands'),
    '?': () => setDialog('keys'),
    'g e': () => void navigate({ to: '/executions', search: {} }),
  })
  return (
    <div className={styles.shell}>
      <a className={styles.skip} href="#main">
        to the content
      </a>
      <header className={styles.bar}>
        <Link to="/executions" search={{}} className={styles.name}>
          NoETL
        </Link>
        <nav className={styles.pages} aria-label="pages">
          <Link to="/executions" search={{}} activeOptions={{ includeSearch: false }} className={styles.page}>
            Executions
          </Link>
        </nav>
        <Button className={styles.search} icon="search" aria-label="search or run a command" onClick={() => setDialog('commands')}>
          <span>search or run a command</span>
          <kbd className={styles.keyHint}>/</kbd>
        </Button>
        <WaitingLink />
        <Caller />
        <ThemeButton />
      </header>
      <ConnectionStrip />
      <main id="main" className={styles.main} tabIndex={-1}>
        <Outlet />
      </main>
      {dialog === 'commands' && <CommandDialog onClose={close} onKeys={() => setDialog('keys')} />}
      {dialog === 'keys' && <KeysDialog onClose={close} />}
    </div>
  )
}

function WaitingLink() {
  const { data } = useQuery(askWaiting())
  const count = data?.executions.length ?? 0
  if (count === 0) return null
  const text = formatCount(count, count >= MAX_WAITING_ROWS)
  return (
    <Link to="/executions" search={{ status: 'waiting' }} className={styles.waits}>
      {text} {count === 1 ? 'waits' : 'wait'}
      <span className={styles.forYou}> for you</span>
    </Link>
  )
}

function Caller() {
  const { data } = useQuery(askSession())
  if (data === undefined) return null
  const leave = () => void signOut().finally(askToSignIn)
  return (
    <span className={styles.user} title={`${data.roles.join(', ')} · tenant ${data.tenant}, NoETL ${data.version}`}>
      <span className={styles.userName}>{data.name}</span> <LinkButton onClick={leave}>sign out</LinkButton>
    </span>
  )
}

const NEXT_THEME = { system: 'light', light: 'dark', dark: 'system' } as const

// Goes through the themes: that of the system, light, dark.
function ThemeButton() {
  const [choice, setChoice] = useState(readThemeChoice)
  const next = NEXT_THEME[choice]
  const change = () => {
    chooseTheme(next)
    setChoice(next)
  }
  return <IconButton icon="sun" label={`theme: ${choice}; change to ${next}`} onClick={change} />
}

function ConnectionStrip() {
  const { data } = useQuery<Connection>({ queryKey: CONNECTION_KEY, queryFn: skipToken, initialData: { downSince: null } })
  const downSince = data?.downSince ?? null
  if (downSince === null) return null
  const since = formatClock(new Date(downSince).toISOString())
  return (
    <p className={styles.strip} role="status">
      no answer since {since}, trying again
    </p>
  )
}

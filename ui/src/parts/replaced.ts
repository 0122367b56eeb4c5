// A part of the page that cannot be loaded: the server is away, or has another version of the page, whose parts have other names.

const RELOAD_PAUSE_MS = 30_000
const LAST_RELOAD = 'noetl.reloaded'

// Loads the page again if the server has another version of it, once in a while. A server that is away changes nothing.
export async function reloadReplacedPage(): Promise<void> {
  const text = await fetch(location.pathname, { cache: 'no-store' }).then(
    (response) => (response.ok ? response.text() : null),
    () => null,
  )
  if (text === null || namesEntry(text, readEntry())) return
  const lastAt = Number(sessionStorage.getItem(LAST_RELOAD) ?? 0)
  if (Date.now() - lastAt < RELOAD_PAUSE_MS) return
  sessionStorage.setItem(LAST_RELOAD, String(Date.now()))
  location.reload()
}

function readEntry(): string {
  const script = document.querySelector<HTMLScriptElement>('script[type=module][src]')
  return script === null ? '' : new URL(script.src).pathname
}

// Whether a document loads this script. Without a script nothing is known: it counts as the same.
export function namesEntry(text: string, entry: string): boolean {
  return entry === '' || text.includes(entry)
}

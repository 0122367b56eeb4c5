// Tells readers of the screen what changed: at most once a second, the newest sentence wins.

const INTERVAL_MS = 1000
let waiting: string | null = null
let lastAt = 0
let timer: ReturnType<typeof setTimeout> | null = null

function getRegion(): HTMLElement {
  const found = document.getElementById('announcer')
  if (found !== null) return found
  const region = document.createElement('div')
  region.id = 'announcer'
  region.className = 'visually-hidden'
  region.setAttribute('role', 'status')
  region.setAttribute('aria-live', 'polite')
  document.body.append(region)
  return region
}

function say(): void {
  timer = null
  if (waiting === null) return
  getRegion().textContent = waiting
  lastAt = Date.now()
  waiting = null
}

export function announce(sentence: string): void {
  waiting = sentence
  if (timer !== null) return
  const wait = Math.max(0, INTERVAL_MS - (Date.now() - lastAt))
  timer = setTimeout(say, wait)
}

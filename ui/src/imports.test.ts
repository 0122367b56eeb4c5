import { expect, test } from 'vitest'

// Who may import whom: pages put subjects together; subjects take from below and not from each other.

const sources = import.meta.glob<string>('./**/*.{ts,tsx}', { query: '?raw', import: 'default', eager: true })

const BELOW = ['api', 'parts', 'graph', 'timeline']
const ALLOWED: Record<string, readonly string[]> = {
  api: [],
  parts: ['api'],
  graph: ['api', 'parts'],
  timeline: ['api', 'parts'],
  shell: BELOW,
  executions: BELOW,
  login: BELOW,
  events: BELOW,
  inspector: BELOW,
  why: BELOW,
  logs: BELOW,
  preview: BELOW,
  playbook: BELOW,
  execution: [...BELOW, 'events', 'inspector', 'why', 'logs', 'preview', 'playbook'],
}

function listImports(source: string): string[] {
  return [...source.matchAll(/from '\.\.\/([a-z]+)(?:\/|')/g)].map((match) => match[1] ?? '')
}

test.each(Object.keys(ALLOWED))('%s imports only what it may', (subject) => {
  const files = Object.entries(sources).filter(([path]) => path.startsWith(`./${subject}/`))
  expect(files.length).toBeGreaterThan(0)
  for (const [path, source] of files) {
    for (const imported of listImports(source)) expect([subject, ...(ALLOWED[subject] ?? [])], path).toContain(imported)
  }
})

test('every folder is named here', () => {
  const folders = new Set(Object.keys(sources).map((path) => path.split('/')[1] ?? ''))
  const subjects = [...folders].filter((folder) => !folder.includes('.'))
  expect(subjects.sort()).toEqual(Object.keys(ALLOWED).sort())
})

test('no source makes HTML from text', () => {
  for (const [path, source] of Object.entries(sources)) {
    if (path.endsWith('.test.ts')) continue
    expect(source, path).not.toMatch(/dangerouslySetInnerHTML|innerHTML|insertAdjacentHTML|document\.write|\beval\(/)
  }
})

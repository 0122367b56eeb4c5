// The theme follows the system until somebody chooses one; the choice is kept in the browser.

export type ThemeChoice = 'system' | 'light' | 'dark'

const KEY = 'noetl.theme'
const dark = window.matchMedia('(prefers-color-scheme: dark)')

export function readThemeChoice(): ThemeChoice {
  const kept = localStorage.getItem(KEY)
  return kept === 'light' || kept === 'dark' ? kept : 'system'
}

export function applyTheme(choice: ThemeChoice): void {
  const isDark = choice === 'system' ? dark.matches : choice === 'dark'
  document.documentElement.dataset.theme = isDark ? 'dark' : 'light'
}

export function chooseTheme(choice: ThemeChoice): void {
  if (choice === 'system') localStorage.removeItem(KEY)
  else localStorage.setItem(KEY, choice)
  applyTheme(choice)
}

export function startTheme(): void {
  applyTheme(readThemeChoice())
  dark.addEventListener('change', () => applyTheme(readThemeChoice()))
}

import { useKeys } from '../parts/useKeys'

function listLinks(): HTMLElement[] {
  return [...document.querySelectorAll<HTMLElement>('[data-row]')]
}

function focusRow(move: number): void {
  const links = listLinks()
  const index = links.indexOf(document.activeElement as HTMLElement)
  const next = index === -1 ? 0 : Math.min(links.length - 1, Math.max(0, index + move))
  links[next]?.focus()
}

// `j` and `k` go through the rows, `x` selects one, Enter follows its link, Escape clears the selection.
export function useRowKeys(toggle: (id: string) => void, clear: () => void): void {
  useKeys({
    j: () => focusRow(1),
    k: () => focusRow(-1),
    x: () => {
      const id = (document.activeElement as HTMLElement | null)?.dataset.row
      if (id !== undefined) toggle(id)
    },
    Escape: clear,
  })
}

import type { ListSearch } from './filter'

// Filters with a name, kept in the browser.

export interface SavedFilter {
  name: string
  search: ListSearch
}

const KEY = 'noetl.filters'
const MAX_FILTERS = 50

export function parseFilters(text: string | null): SavedFilter[] {
  try {
    const kept: unknown = JSON.parse(text ?? '[]')
    return Array.isArray(kept) ? kept.filter(isFilter) : []
  } catch {
    return []
  }
}

function isFilter(value: unknown): value is SavedFilter {
  const filter = value as Partial<SavedFilter> | null
  return typeof filter?.name === 'string' && typeof filter.search === 'object' && filter.search !== null
}

export function addFilter(filters: SavedFilter[], added: SavedFilter): SavedFilter[] {
  const others = filters.filter((filter) => filter.name !== added.name)
  return [added, ...others].slice(0, MAX_FILTERS)
}

export const readFilters = () => parseFilters(localStorage.getItem(KEY))
export const keepFilters = (filters: SavedFilter[]) => localStorage.setItem(KEY, JSON.stringify(filters))

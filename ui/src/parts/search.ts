// Search parameters as they stand in the address: plain text, without quotes of JSON. Pure.

export type RawSearch = Record<string, unknown>

export function parseSearch(text: string): Record<string, string> {
  return Object.fromEntries(new URLSearchParams(text))
}

export function stringifySearch(search: RawSearch): string {
  const parameters = new URLSearchParams()
  for (const [name, value] of Object.entries(search)) {
    if (value === undefined || value === null || value === '' || value === false) continue
    parameters.set(name, String(value))
  }
  // Slashes, colons and commas are allowed in a query, and paths and statuses are easier to read with them.
  const text = parameters.toString().replaceAll('%2F', '/').replaceAll('%3A', ':').replaceAll('%2C', ',')
  return text === '' ? '' : `?${text}`
}

export function readText(value: unknown): string | undefined {
  return typeof value === 'string' && value !== '' ? value : undefined
}

export function readNumber(value: unknown): number | undefined {
  if (typeof value === 'number') return Number.isSafeInteger(value) && value >= 0 ? value : undefined
  if (typeof value !== 'string' || !/^\d{1,15}$/.test(value)) return undefined
  return Number(value)
}

export function readMoment(value: unknown): string | undefined {
  const text = readText(value)
  return text !== undefined && !Number.isNaN(Date.parse(text)) ? text : undefined
}

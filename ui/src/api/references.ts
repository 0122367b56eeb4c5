import type { ResultReferenceView } from './types'

// The fields of a stored payload that the page shows. The server answers with an open map.
export function readReference(fields: Record<string, unknown>): ResultReferenceView {
  return {
    ref_id: readText(fields.ref_id) ?? '',
    uri: readText(fields.uri) ?? '',
    tier: readText(fields.tier) ?? '',
    bytes: readNumber(fields.bytes),
    rows: readNumber(fields.rows),
    format: readText(fields.format),
  }
}

export function readText(value: unknown): string | null {
  return typeof value === 'string' ? value : null
}

function readNumber(value: unknown): number | null {
  return typeof value === 'number' ? value : null
}

import { callText } from './call'
import type { LogLine } from './messages'

export interface LogFilter {
  step?: string | undefined
  item?: number | undefined
  command_id?: string | undefined
  text?: string | undefined
  tail?: number | undefined
  after?: number | undefined
}

// Reads step logs: one JSON document per line.
export async function fetchLogLines(id: string, filter: LogFilter, signal?: AbortSignal): Promise<LogLine[]> {
  const path = `/api/executions/${encodeURIComponent(id)}/logs`
  const text = await callText(path, { ...filter }, signal)
  return parseLines(text)
}

export function parseLines(text: string): LogLine[] {
  const lines = text.split('\n').filter((line) => line !== '')
  return lines.map((line) => JSON.parse(line) as LogLine)
}

import { askToSignIn } from './signIn'
import type { Problem as ProblemBody } from './types'

// What the page shows of a problem.
export type Problem = Pick<ProblemBody, 'code' | 'title' | 'status' | 'detail' | 'hint'>

// An answer of the server that is not a success, with the problem it names.
export class CallFailed extends Error {
  readonly problem: Problem

  constructor(problem: Problem) {
    super(problem.detail)
    this.name = 'CallFailed'
    this.problem = problem
  }
}

export type Query = Record<string, string | number | boolean | null | undefined>

export interface CallOptions {
  query?: Query | undefined
  body?: unknown
  signal?: AbortSignal | undefined
}

// Makes the URL of a route. Parameters without a value are left out.
export function makeUrl(path: string, query: Query = {}): string {
  const search = new URLSearchParams()
  for (const [name, value] of Object.entries(query)) {
    if (value === null || value === undefined || value === '' || value === false) continue
    search.set(name, String(value))
  }
  const text = search.toString()
  return text ? `${path}?${text}` : path
}

type Method = 'GET' | 'POST' | 'DELETE'

// Calls a route and returns the decoded answer. Throws CallFailed with the problem otherwise.
export async function call<T>(method: Method, path: string, options: CallOptions = {}): Promise<T> {
  const response = await send(method, path, options)
  if (response.status === 204) return undefined as T
  return (await response.json()) as T
}

// The same for a route that answers with text.
export async function callText(path: string, query: Query, signal?: AbortSignal): Promise<string> {
  const response = await send('GET', path, { query, signal })
  return response.text()
}

async function send(method: Method, path: string, { query, body, signal }: CallOptions): Promise<Response> {
  const headers: Record<string, string> = { Accept: 'application/json' }
  if (body !== undefined) headers['Content-Type'] = 'application/json'
  const init = { method, headers, body: body === undefined ? null : JSON.stringify(body), signal: signal ?? null }
  const response = await fetch(makeUrl(path, query), init).catch((error: unknown) => {
    if (signal?.aborted) throw error
    throw new CallFailed(makeUnreachableProblem())
  })
  if (response.status === 401) askToSignIn()
  if (!response.ok) throw new CallFailed(await readProblem(response))
  return response
}

function makeUnreachableProblem(): Problem {
  return {
    code: 'UNREACHABLE',
    title: 'No answer',
    status: 0,
    detail: 'the server does not answer',
    hint: 'see if the server runs: noetl status',
  }
}

async function readProblem(response: Response): Promise<Problem> {
  const fallback: Problem = {
    code: `HTTP_${response.status}`,
    title: response.statusText || 'Error',
    status: response.status,
    detail: `the server answered with status ${response.status}`,
    hint: null,
  }
  try {
    const body = (await response.json()) as Partial<Problem>
    return { ...fallback, ...body }
  } catch {
    return fallback
  }
}

export const get = <T>(path: string, query?: Query, signal?: AbortSignal) => call<T>('GET', path, { query, signal })
export const post = <T>(path: string, body: unknown = {}) => call<T>('POST', path, { body })

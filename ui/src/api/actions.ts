import { call, post } from './call'
import type { AskedView, BulkView, RepeatView, SessionView, SignInWaysView, SignedOutView, StartedView } from './types'

// What people do with an execution.

export type Change = 'cancel' | 'pause' | 'resume' | 'release'
export type BulkChange = 'cancel' | 'retry' | 'pause' | 'resume'

// Items of loops by step, as indexes.
export type ChosenItems = Record<string, number[]>

export interface RepeatBody {
  payload?: Record<string, unknown>
  version?: number | 'latest'
  from_step?: string
  items?: ChosenItems
}

const execution = (id: string) => `/api/executions/${encodeURIComponent(id)}`

export const changeExecution = (id: string, change: Change) => post<AskedView>(`${execution(id)}/${change}`)
export const retryExecution = (id: string, body: RepeatBody = {}) => post<StartedView>(`${execution(id)}/retry?wait=true`, body)
export const rerunExecution = (id: string, body: RepeatBody = {}) => post<StartedView>(`${execution(id)}/rerun?wait=true`, body)
export const previewRerun = (id: string, body: RepeatBody = {}) => post<RepeatView>(`${execution(id)}/rerun/preview`, body)
export const sendSignal = (id: string, name: string, payload: unknown) =>
  post<AskedView>(`${execution(id)}/signals/${encodeURIComponent(name)}`, { payload })
export const changeMany = (change: BulkChange, ids: string[]) =>
  post<BulkView>('/api/executions/bulk', { do: change, ids })

export interface Verdict {
  approved: boolean
  by: string
  comment: string | null
}

// An approval is a signal with a name made of the step.
export const decideApproval = (id: string, step: string, verdict: Verdict) => sendSignal(id, `approve:${step}`, verdict)

// The session of this browser is a cookie that the server sets.
export type Proof = { code: string } | { token: string } | { name: string; password: string }
export const signIn = (proof: Proof) => post<SessionView>('/api/session', proof)
export const listSignInWays = () => call<SignInWaysView>('GET', '/api/session/ways')
export const signOut = () => call<SignedOutView>('DELETE', '/api/session')
export const hasSession = () =>
  fetch('/api/session').then(
    (response) => response.ok,
    () => false,
  )

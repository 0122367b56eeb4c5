import { useMutation, useQuery } from '@tanstack/react-query'
import { useNavigate } from '@tanstack/react-router'
import { useState } from 'react'
import type { RepeatBody } from '../api/actions'
import { previewRerun, rerunExecution } from '../api/actions'
import { askWorkload } from '../api/queries'
import { Button } from '../parts/Button'
import { joinCommand } from '../parts/cli'
import { CopyAsCli } from '../parts/Copy'
import { Dialog, DialogButtons } from '../parts/Dialog'
import { parseMap, pickChanges } from '../parts/payload'
import { PayloadField } from '../parts/PayloadField'
import { Problem } from '../parts/Problem'
import { summarizeValue } from '../parts/values'
import type { PageState } from './page'
import { RepeatPlan } from './RepeatPlan'

// Runs the playbook again, with the workload as it was or as it is typed. The server checks it before anything starts.
export default function RerunDialog({ state, onClose }: { state: PageState; onClose: () => void }) {
  const { data: workload, error } = useQuery(askWorkload(state.id))
  return (
    <Dialog title="Run again" open onClose={onClose} wide>
      {error && <Problem error={error} />}
      {workload && <RerunForm state={state} workload={workload} onClose={onClose} />}
    </Dialog>
  )
}

interface RerunFormProps {
  state: PageState
  workload: Record<string, unknown>
  onClose: () => void
}

function RerunForm({ state, workload, onClose }: RerunFormProps) {
  const { id, live, selection } = state
  const navigate = useNavigate()
  const [text, setText] = useState(() => JSON.stringify(workload, null, 2))
  const [fromStep, setFromStep] = useState('')
  const parsed = parseMap(text)
  const payload = parsed.problem === null ? pickChanges(workload, parsed.value as Record<string, unknown>) : {}
  const body: RepeatBody = { payload, ...(fromStep === '' ? {} : { from_step: fromStep }) }
  const preview = useQuery({
    queryKey: ['rerun', id, body],
    queryFn: () => previewRerun(id, body),
    enabled: parsed.problem === null,
    retry: false,
  })
  const work = useMutation({
    mutationFn: () => rerunExecution(id, body),
    onSuccess: (started) => {
      onClose()
      void navigate({ to: '/executions/$id', params: { id: started.execution_id } })
    },
  })
  const command = joinCommand(
    'noetl',
    'exec',
    'rerun',
    id,
    fromStep && '--from',
    fromStep,
    ...Object.entries(payload).flatMap(([name, value]) => ['--set', `${name}=${JSON.stringify(value)}`]),
  )
  return (
    <>
      <FromSelect steps={Object.keys(live.steps)} selected={selection.step} value={fromStep} onChange={setFromStep} />
      <PayloadField label="Workload" text={text} problem={parsed.problem} onChange={setText} />
      <Changes workload={workload} payload={payload} />
      {preview.data && parsed.problem === null && <RepeatPlan plan={preview.data} />}
      {(preview.error ?? work.error) && <Problem error={preview.error ?? work.error} />}
      <DialogButtons onClose={onClose}>
        <CopyAsCli command={command} />
        <Button
          look="primary"
          disabled={parsed.problem !== null || preview.isError || work.isPending}
          onClick={() => work.mutate()}
        >
          Run again
        </Button>
      </DialogButtons>
    </>
  )
}

interface FromSelectProps {
  steps: string[]
  selected: string | null
  value: string
  onChange: (step: string) => void
}

function FromSelect({ steps, selected, value, onChange }: FromSelectProps) {
  return (
    <label>
      From{' '}
      <select value={value} onChange={(event) => onChange(event.target.value)}>
        <option value="">the beginning</option>
        {steps.map((step) => (
          <option key={step} value={step}>
            {step}
            {step === selected ? ' (selected)' : ''}
          </option>
        ))}
      </select>
    </label>
  )
}

function Changes({ workload, payload }: { workload: Record<string, unknown>; payload: Record<string, unknown> }) {
  const names = Object.keys(payload)
  if (names.length === 0) return <p>The workload is as it was.</p>
  return (
    <ul aria-label="changes of the workload">
      {names.map((name) => (
        <li key={name}>
          <code>{name}</code>: {summarizeValue(workload[name])} → {summarizeValue(payload[name])}
        </li>
      ))}
    </ul>
  )
}

// What an approval asks a person. Pure.

export type Question = Record<string, unknown>

export interface QuestionParts {
  message: string | null
  fields: [string, string][]
}

const MESSAGE_FIELD = 'message'

// The text of a question, and its other fields as text.
export function splitQuestion(question: Question): QuestionParts {
  const { [MESSAGE_FIELD]: message, ...rest } = question
  const fields = Object.entries(rest).map(([name, value]): [string, string] => [name, writeValue(value)])
  return { message: message === undefined ? null : writeValue(message), fields }
}

function writeValue(value: unknown): string {
  if (typeof value === 'string') return value
  return value === null || value === undefined ? 'none' : JSON.stringify(value)
}

// A large order. Ship it? · who finance · amount 1030
export function describeQuestion(question: Question): string {
  const { message, fields } = splitQuestion(question)
  const parts = fields.map(([name, value]) => `${name} ${value}`)
  return [...(message === null ? [] : [message]), ...parts].join(' · ')
}

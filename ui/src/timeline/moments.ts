// Moments of the server as milliseconds since the epoch. They have microseconds, which `Date` would drop; and a timeline reads so many
// of them that `Date.parse` would take most of its time.

const MINUTE_LENGTH = 'YYYY-MM-DDTHH:MM'.length
const ZERO = '0'.charCodeAt(0)

let knownMinute = ''
let knownMinuteMs = 0

export function parseMoment(text: string): number {
  if (!text.endsWith('Z') || text.charCodeAt(MINUTE_LENGTH) !== ':'.charCodeAt(0)) return Date.parse(text)
  const minute = text.slice(0, MINUTE_LENGTH)
  if (minute !== knownMinute) {
    knownMinuteMs = Date.parse(`${minute}Z`)
    knownMinute = minute
  }
  const seconds = readDigit(text, MINUTE_LENGTH + 1) * 10 + readDigit(text, MINUTE_LENGTH + 2)
  let fraction = 0
  let unit = 100
  for (let n = MINUTE_LENGTH + 4; n < text.length - 1; n += 1) {
    fraction += readDigit(text, n) * unit
    unit /= 10
  }
  return knownMinuteMs + seconds * 1_000 + fraction
}

function readDigit(text: string, n: number): number {
  return text.charCodeAt(n) - ZERO
}

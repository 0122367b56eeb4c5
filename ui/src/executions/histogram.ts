import type { HistogramView } from '../api/types'
import type { Tone } from '../parts/tone'
import { getLook } from '../parts/tone'

// From counts per bucket to stacked bars, and from places on the drawing to moments. Pure.

export interface Bars {
  count: number
  highest: number
  // For each tone, an SVG path of all its bars in a box of `count` by 1.
  paths: { tone: Tone; path: string }[]
}

// Failures lie at the bottom, where they can be compared.
const ORDER: readonly Tone[] = ['failed', 'waiting', 'running', 'completed', 'idle']
const GAP = 0.16

export function makeBars(histogram: HistogramView): Bars {
  const tones = sumByTone(histogram)
  const count = Math.max(0, ...Object.values(histogram.by).map((values) => values.length))
  const totals = new Array<number>(count).fill(0)
  for (const values of tones.values()) values.forEach((value, index) => (totals[index] = (totals[index] ?? 0) + value))
  const highest = Math.max(1, ...totals)
  const base = new Array<number>(count).fill(0)
  const paths: Bars['paths'] = []
  for (const tone of ORDER) {
    const values = tones.get(tone)
    if (values === undefined) continue
    paths.push({ tone, path: drawBars(values, base, highest) })
  }
  return { count, highest, paths }
}

function sumByTone(histogram: HistogramView): Map<Tone, number[]> {
  const tones = new Map<Tone, number[]>()
  for (const [status, values] of Object.entries(histogram.by)) {
    const { tone } = getLook(status)
    const sums = tones.get(tone) ?? []
    values.forEach((value, index) => (sums[index] = (sums[index] ?? 0) + value))
    tones.set(tone, sums)
  }
  return tones
}

// Draws one tone on top of what `base` has, and raises `base`.
function drawBars(values: number[], base: number[], highest: number): string {
  let path = ''
  values.forEach((value, index) => {
    if (value === 0) return
    const bottom = base[index] ?? 0
    base[index] = bottom + value
    const y = 1 - (bottom + value) / highest
    path += `M${index + GAP / 2} ${round(y)}h${1 - GAP}v${round(value / highest)}h${-(1 - GAP)}z`
  })
  return path
}

function round(value: number): number {
  return Math.round(value * 10_000) / 10_000
}

// The window between two places (0 … 1) of the drawing, widened to whole buckets.
export function selectWindow(histogram: HistogramView, count: number, a: number, b: number): { since: string; until: string } {
  const first = Math.floor(Math.max(0, Math.min(a, b)) * count)
  const last = Math.ceil(Math.min(1, Math.max(a, b)) * count)
  const start = Date.parse(histogram.from)
  const end = Math.max(last, first + 1)
  return {
    since: new Date(start + first * histogram.width_ms).toISOString(),
    until: new Date(start + end * histogram.width_ms).toISOString(),
  }
}

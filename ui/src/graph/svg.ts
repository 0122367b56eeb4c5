// The graph as an SVG document of its own, in the colours of the theme. Pure.
import type { GraphStepView, GraphView, PageArcView, PageStepView } from '../api/types'
import type { Shape, Tone } from '../parts/tone'
import { describeArc, describeStep, writeLabel, type ArcFacts, type ArcState } from './facts'
import { LABEL_LINE_PX, measureLabel, measureLabelHeight, STEP_HEIGHT_PX, STEP_WIDTH_PX, type Layout } from './layout'
import { ARROW_PATH, ARROW_SIZE_PX, measureRankLabels, traceArc } from './paths'

export interface Colours {
  surface: string
  ground: string
  line: string
  text: string
  muted: string
  faint: string
  tones: Record<Tone, { text: string; fill: string; soft: string }>
}

const FONT = 'system-ui, sans-serif'
const MONO = 'ui-monospace, monospace'
const GLYPHS: Record<Shape, string> = {
  'disc-tick': '✓',
  'ring-tick': '✓',
  arc: '◌',
  clock: '◷',
  'dotted-ring': '○',
  bars: '‖',
  diamond: '◆',
  hexagon: '◆',
  square: '■',
  dash: '–',
}
const MAX_NAME_CHARACTERS = 18
const MAX_LINE_CHARACTERS = 30
const PADDING_PX = 12
const MIN_FAILED_PX = 3

export function exportSvg(
  graph: GraphView,
  steps: Record<string, PageStepView>,
  arcs: Record<string, PageArcView>,
  layout: Layout,
  colours: Colours,
): string {
  const width = Math.ceil(layout.width)
  const height = Math.ceil(layout.height)
  const states: ArcState[] = ['taken', 'false', 'error', 'untried']
  const drawnArcs = graph.arcs.filter((arc) => arc.id in layout.arcs)
  const labels = measureRankLabels(drawnArcs, layout)
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}">`,
    `<title>${escapeXml(graph.path ?? 'playbook')}</title>`,
    `<defs>${states.map((state) => writeArrow(state, colours)).join('')}</defs>`,
    `<rect width="${width}" height="${height}" fill="${colours.ground}"/>`,
    ...drawnArcs.map((arc) => {
      const facts = describeArc(arc, arcs[arc.id])
      return writeArc(traceArc(arc, layout, labels), facts, colours) + drawLabel(facts, layout.arcs[arc.id]!.label, colours)
    }),
    ...graph.steps.map((step) => writeStep(step, steps[step.name], layout, colours)),
    '</svg>',
  ].join('\n')
}

export function escapeXml(text: string): string {
  return text.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;').replaceAll('"', '&quot;')
}

function cut(text: string, length: number): string {
  return text.length <= length ? text : `${text.slice(0, length - 1)}…`
}

function findArcColour(state: ArcState, colours: Colours): string {
  if (state === 'error') return colours.tones.failed.fill
  return state === 'taken' ? colours.muted : colours.faint
}

function writeArrow(state: ArcState, colours: Colours): string {
  const size = ARROW_SIZE_PX
  const box = `markerWidth="${size}" markerHeight="${size}" refX="${size}" refY="${size / 2}"`
  const fill = findArcColour(state, colours)
  return `<marker id="${state}" markerUnits="userSpaceOnUse" ${box} orient="auto"><path d="${ARROW_PATH}" fill="${fill}"/></marker>`
}

function writeArc(path: string, facts: ArcFacts, colours: Colours): string {
  const isFollowed = facts.state === 'taken' || facts.state === 'error'
  const dash = isFollowed ? '' : ' stroke-dasharray="4 4"'
  const colour = findArcColour(facts.state, colours)
  return `<path d="${path}" fill="none" stroke="${colour}" stroke-width="1.5"${dash} marker-end="url(#${facts.state})"/>`
}

function drawLabel(facts: ArcFacts, middle: { x: number; y: number } | null, colours: Colours): string {
  if (middle === null) return ''
  const lines = writeLabel(facts)
  const width = measureLabel(Math.max(...lines.map((line) => line.length)))
  const height = measureLabelHeight(lines.length)
  const corner = `x="${middle.x - width / 2}" y="${middle.y - height / 2}"`
  const box = `<rect ${corner} width="${width}" height="${height}" rx="10" fill="${colours.ground}"/>`
  const top = middle.y + 4 - ((lines.length - 1) * LABEL_LINE_PX) / 2
  const texts = lines.map((line, n) => {
    const place = `x="${middle.x}" y="${top + n * LABEL_LINE_PX}" text-anchor="middle"`
    return `<text ${place} font-family="${MONO}" font-size="12" fill="${colours.muted}">${escapeXml(line)}</text>`
  })
  return box + texts.join('')
}

function writeStep(step: GraphStepView, view: PageStepView | undefined, layout: Layout, colours: Colours): string {
  const facts = describeStep(step, view)
  const tone = colours.tones[facts.look.tone]
  const middle = layout.steps[step.name]!
  const dash = facts.isReached ? '' : ' stroke-dasharray="4 3"'
  const border = facts.isReached ? tone.fill : colours.line
  const size = `width="${STEP_WIDTH_PX}" height="${STEP_HEIGHT_PX}"`
  const status = [facts.look.word, facts.kinds].filter((part) => part !== '').join(' · ')
  const write = (y: number, text: string, style: string) =>
    `<text x="${PADDING_PX}" y="${y}" font-family="${FONT}" ${style}>${escapeXml(text)}</text>`
  return [
    `<g transform="translate(${middle.x - STEP_WIDTH_PX / 2} ${middle.y - STEP_HEIGHT_PX / 2})">`,
    `<rect ${size} rx="6" fill="${colours.surface}" stroke="${border}"${dash}/>`,
    write(22, GLYPHS[facts.look.shape], `font-size="13" fill="${tone.text}"`),
    `<g transform="translate(18 0)">`,
    write(22, cut(step.name, MAX_NAME_CHARACTERS), `font-size="13" font-weight="600" fill="${colours.text}"`),
    '</g>',
    write(40, cut(status, MAX_LINE_CHARACTERS), `font-size="11" fill="${tone.text}"`),
    write(57, cut(facts.detail, MAX_LINE_CHARACTERS), `font-size="11" fill="${colours.muted}"`),
    facts.meter === null ? '' : writeMeter(facts.meter.okShare, facts.meter.failedShare, colours),
    '</g>',
  ].join('')
}

function writeMeter(okShare: number, failedShare: number, colours: Colours): string {
  const length = STEP_WIDTH_PX - 2 * PADDING_PX
  const write = (x: number, width: number, fill: string) =>
    `<rect x="${PADDING_PX + x}" y="${STEP_HEIGHT_PX - 11}" width="${width}" height="4" fill="${fill}"/>`
  const failed = failedShare > 0 ? Math.max(MIN_FAILED_PX, length * failedShare) : 0
  const ok = Math.min(length * okShare, length - failed)
  return [
    write(0, length, colours.line),
    write(0, ok, colours.tones.completed.fill),
    write(ok, failed, colours.tones.failed.fill),
  ].join('')
}

export function readColours(element: Element): Colours {
  const style = getComputedStyle(element)
  const read = (name: string) => style.getPropertyValue(name).trim()
  const readTone = (tone: Tone) => ({
    text: read(`--${tone}-text`),
    fill: read(`--${tone}-fill`),
    soft: read(`--${tone}-soft`),
  })
  return {
    surface: read('--surface'),
    ground: read('--ground'),
    line: read('--line'),
    text: read('--text'),
    muted: read('--text-2'),
    faint: read('--text-3'),
    tones: {
      completed: readTone('completed'),
      running: readTone('running'),
      waiting: readTone('waiting'),
      failed: readTone('failed'),
      idle: readTone('idle'),
    },
  }
}

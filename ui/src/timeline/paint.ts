// Carries drawing calls out on a canvas, in the colours of the theme.
import type { Call, Paint } from './draw'

export type Palette = Record<Paint, string> & { font: string }

const HATCH_PX = 6
const ELLIPSIS = '…'

// The colours of the page, as they are now.
export function readPalette(element: Element): Palette {
  const style = getComputedStyle(element)
  const read = (name: string) => style.getPropertyValue(name).trim()
  return {
    surface: read('--surface'),
    selected: read('--accent-soft'),
    grid: read('--line'),
    folded: read('--sunken'),
    text: read('--text'),
    muted: read('--text-2'),
    pale: `color-mix(in srgb, ${read('--completed-fill')} 32%, ${read('--surface')})`,
    solid: read('--completed-fill'),
    failed: read('--failed-fill'),
    waiting: read('--waiting-fill'),
    cursor: read('--accent'),
    font: `12px ${read('--font')}`,
  }
}

export function paintCalls(context: CanvasRenderingContext2D, calls: Call[], palette: Palette): void {
  context.font = palette.font
  context.textBaseline = 'middle'
  for (const call of calls) {
    context.fillStyle = palette[call.paint]
    context.strokeStyle = palette[call.paint]
    paintCall(context, call, palette)
  }
}

function paintCall(context: CanvasRenderingContext2D, call: Call, palette: Palette): void {
  switch (call.draw) {
    case 'bars':
      traceBoxes(context, call.boxes)
      context.fill()
      return
    case 'hatch':
      paintHatch(context, call.boxes, palette[call.paint])
      return
    case 'diamonds':
      traceDiamonds(context, call.centres, call.radius)
      context.fill()
      // A rim keeps a failure visible on a band of any colour.
      context.strokeStyle = palette.surface
      context.lineWidth = 1
      context.stroke()
      return
    case 'rings':
      traceRings(context, call.centres, call.radius)
      context.lineWidth = 1.5
      context.stroke()
      return
    case 'text':
      context.textAlign = call.align
      context.fillText(fitText(context, call.text, call.maxWidth), call.x, call.y)
  }
}

function traceBoxes(context: CanvasRenderingContext2D, boxes: number[]): void {
  context.beginPath()
  for (let n = 0; n < boxes.length; n += 4) context.rect(boxes[n]!, boxes[n + 1]!, boxes[n + 2]!, boxes[n + 3]!)
}

function traceDiamonds(context: CanvasRenderingContext2D, centres: number[], radius: number): void {
  context.beginPath()
  for (let n = 0; n < centres.length; n += 2) {
    const x = centres[n]!
    const y = centres[n + 1]!
    context.moveTo(x, y - radius)
    context.lineTo(x + radius, y)
    context.lineTo(x, y + radius)
    context.lineTo(x - radius, y)
    context.closePath()
  }
}

function traceRings(context: CanvasRenderingContext2D, centres: number[], radius: number): void {
  context.beginPath()
  for (let n = 0; n < centres.length; n += 2) {
    context.moveTo(centres[n]! + radius, centres[n + 1]!)
    context.arc(centres[n]!, centres[n + 1]!, radius, 0, Math.PI * 2)
  }
}

// Slanted lines in place of a filled box. The lines of neighbouring boxes continue each other.
function paintHatch(context: CanvasRenderingContext2D, boxes: number[], colour: string): void {
  context.save()
  traceBoxes(context, boxes)
  context.clip()
  context.beginPath()
  for (let n = 0; n < boxes.length; n += 4) traceSlants(context, boxes, n)
  context.strokeStyle = colour
  context.lineWidth = 1.5
  context.stroke()
  context.restore()
}

function traceSlants(context: CanvasRenderingContext2D, boxes: number[], n: number): void {
  const left = Math.max(boxes[n]!, 0)
  const right = Math.min(boxes[n]! + boxes[n + 2]!, context.canvas.width)
  const top = boxes[n + 1]!
  const bottom = top + boxes[n + 3]!
  const first = Math.floor((left + top) / HATCH_PX) * HATCH_PX
  for (let sum = first; sum <= right + bottom; sum += HATCH_PX) {
    context.moveTo(sum - top, top)
    context.lineTo(sum - bottom, bottom)
  }
}

function fitText(context: CanvasRenderingContext2D, text: string, maxWidth: number): string {
  if (context.measureText(text).width <= maxWidth) return text
  let low = 0
  let high = text.length
  while (low < high) {
    const middle = (low + high + 1) >> 1
    if (context.measureText(text.slice(0, middle) + ELLIPSIS).width <= maxWidth) low = middle
    else high = middle - 1
  }
  return low === 0 ? '' : text.slice(0, low) + ELLIPSIS
}

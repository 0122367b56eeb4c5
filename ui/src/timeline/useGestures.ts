// Pointer and wheel on the canvas of a timeline, as wishes of the reader.
import { useEffect, useRef, type RefObject } from 'react'

export interface Gestures {
  // Whether a drag that begins here moves the cursor.
  grabsCursor: (x: number, y: number) => boolean
  moveCursor: (x: number, isLast: boolean) => void
  pan: (pixels: number) => void
  // What was at `x` is then at `toX`. Returns whether anything changed, else the page scrolls.
  zoom: (factor: number, x: number, toX: number) => boolean
  click: (x: number, y: number) => void
  hover: (point: { x: number; y: number } | null) => void
  reset: () => void
}

const MIN_DRAG_PX = 4
const WHEEL_ZOOM_PER_PX = 0.0016
const PINCH_WHEEL_ZOOM_PER_PX = 0.01
const WHEEL_LINE_PX = 16

interface Point {
  x: number
  y: number
}

type Mode = 'none' | 'press' | 'cursor' | 'pan' | 'pinch'

export function useGestures(canvas: RefObject<HTMLCanvasElement | null>, gestures: Gestures): void {
  const current = useRef(gestures)
  useEffect(() => {
    current.current = gestures
  })
  useEffect(() => {
    const element = canvas.current
    if (element === null) return
    return listenToPointers(element, () => current.current)
  }, [canvas])
}

function listenToPointers(element: HTMLCanvasElement, get: () => Gestures): () => void {
  const controller = new AbortController()
  const options = { signal: controller.signal }
  const drag = new Drag(get)
  const place = (event: MouseEvent): Point => {
    const box = element.getBoundingClientRect()
    return { x: event.clientX - box.left, y: event.clientY - box.top }
  }
  element.addEventListener(
    'pointerdown',
    (event) => {
      if (event.button !== 0) return
      element.setPointerCapture(event.pointerId)
      drag.begin(event.pointerId, place(event))
    },
    options,
  )
  element.addEventListener('pointermove', (event) => drag.move(event.pointerId, place(event)), options)
  element.addEventListener('pointerup', (event) => drag.end(event.pointerId, place(event)), options)
  element.addEventListener('pointercancel', (event) => drag.cancel(event.pointerId), options)
  element.addEventListener('pointerleave', () => get().hover(null), options)
  element.addEventListener('dblclick', () => get().reset(), options)
  element.addEventListener('wheel', (event) => turnWheel(event, place(event).x, get()), { ...options, passive: false })
  return () => controller.abort()
}

function turnWheel(event: WheelEvent, x: number, gestures: Gestures): void {
  const unit = event.deltaMode === WheelEvent.DOM_DELTA_LINE ? WHEEL_LINE_PX : 1
  const isSideways = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)
  if (isSideways) {
    gestures.pan(-(event.deltaX || event.deltaY) * unit)
    event.preventDefault()
    return
  }
  const perPixel = event.ctrlKey ? PINCH_WHEEL_ZOOM_PER_PX : WHEEL_ZOOM_PER_PX
  const factor = Math.exp(event.deltaY * unit * perPixel)
  if (gestures.zoom(factor, x, x)) event.preventDefault()
}

// One finger or button drags, two fingers pinch.
class Drag {
  private readonly points = new Map<number, Point>()
  private mode: Mode = 'none'
  private origin: Point = { x: 0, y: 0 }

  constructor(private readonly get: () => Gestures) {}

  begin(id: number, point: Point): void {
    this.points.set(id, point)
    this.get().hover(null)
    if (this.points.size === 2) {
      this.mode = 'pinch'
      return
    }
    this.origin = point
    const grabs = this.get().grabsCursor(point.x, point.y)
    this.mode = grabs ? 'cursor' : 'press'
    if (grabs) this.get().moveCursor(point.x, false)
  }

  move(id: number, point: Point): void {
    const before = this.points.get(id)
    if (before === undefined) {
      this.get().hover(point)
      return
    }
    if (this.mode === 'pinch') this.pinch(id, point)
    if (this.mode === 'press' && Math.abs(point.x - this.origin.x) > MIN_DRAG_PX) this.mode = 'pan'
    if (this.mode === 'cursor') this.get().moveCursor(point.x, false)
    if (this.mode === 'pan') this.get().pan(point.x - before.x)
    this.points.set(id, point)
  }

  end(id: number, point: Point): void {
    if (!this.points.delete(id)) return
    if (this.mode === 'cursor') this.get().moveCursor(point.x, true)
    if (this.mode === 'press') this.get().click(point.x, point.y)
    this.mode = 'none'
  }

  cancel(id: number): void {
    this.points.delete(id)
    this.mode = 'none'
  }

  private pinch(id: number, point: Point): void {
    const before = [...this.points.values()]
    const after = [...this.points.entries()].map(([key, value]) => (key === id ? point : value))
    const [width, middle] = measure(before)
    const [newWidth, newMiddle] = measure(after)
    if (width < 1 || newWidth < 1) return
    this.get().zoom(width / newWidth, middle, newMiddle)
  }
}

function measure(points: Point[]): [number, number] {
  const xs = points.map((point) => point.x)
  const least = Math.min(...xs)
  const most = Math.max(...xs)
  return [most - least, (least + most) / 2]
}

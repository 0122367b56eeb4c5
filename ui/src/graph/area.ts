// The part of the graph that is on the screen, in the unit of the layout.
import type { GraphArcView } from '../api/types'
import type { Layout } from './layout'

export interface Area {
  left: number
  top: number
  right: number
  bottom: number
}

export interface Viewport {
  x: number
  y: number
  zoom: number
}

export interface PaneSize {
  width: number
  height: number
}

// Areas are rounded outward, so that moving the graph a little changes nothing.
const GRID_PX = 400
const MIN_READABLE_ZOOM = 0.4
// The smallest zoom at which labels can be read without effort. A larger graph is shown around its most important step.
const MIN_FIT_ZOOM = 0.66
const FOCUS_ZOOM = 0.85
const MAX_FIT_ZOOM = 1
const PADDING_PX = 16

export function findArea(viewport: Viewport, pane: PaneSize): Area {
  const { x, y, zoom } = viewport
  return {
    left: Math.floor(-x / zoom / GRID_PX) * GRID_PX,
    top: Math.floor(-y / zoom / GRID_PX) * GRID_PX,
    right: Math.ceil((pane.width - x) / zoom / GRID_PX) * GRID_PX,
    bottom: Math.ceil((pane.height - y) / zoom / GRID_PX) * GRID_PX,
  }
}

export function isInArea(arc: GraphArcView, layout: Layout, area: Area): boolean {
  const { points } = layout.arcs[arc.id]!
  const xs = points.map((point) => point.x)
  const ys = points.map((point) => point.y)
  const isBeside = Math.max(...xs) < area.left || Math.min(...xs) > area.right
  const isAboveOrBelow = Math.max(...ys) < area.top || Math.min(...ys) > area.bottom
  return !isBeside && !isAboveOrBelow
}

export function fitLayout(layout: Layout, pane: PaneSize): Viewport {
  const across = (pane.width - 2 * PADDING_PX) / layout.width
  const down = (pane.height - 2 * PADDING_PX) / layout.height
  const zoom = Math.min(across, down, MAX_FIT_ZOOM)
  return { x: (pane.width - layout.width * zoom) / 2, y: (pane.height - layout.height * zoom) / 2, zoom }
}

// All of the graph if it can be read then, else what is around a step.
export function chooseViewport(layout: Layout, pane: PaneSize, step: string | null): Viewport {
  const fit = fitLayout(layout, pane)
  const middle = step === null ? undefined : layout.steps[step]
  if (fit.zoom >= MIN_FIT_ZOOM || middle === undefined) return fit
  return keepWithin(centre(middle, pane, FOCUS_ZOOM), layout, pane)
}

// Moves the view so that no room beside the graph is wasted while parts of the graph are outside.
function keepWithin({ x, y, zoom }: Viewport, layout: Layout, pane: PaneSize): Viewport {
  return { x: keepSide(x, layout.width * zoom, pane.width), y: keepSide(y, layout.height * zoom, pane.height), zoom }
}

function keepSide(place: number, length: number, room: number): number {
  const inner = room - 2 * PADDING_PX
  if (length <= inner) return (room - length) / 2
  return Math.min(PADDING_PX, Math.max(room - PADDING_PX - length, place))
}

export function centre(middle: { x: number; y: number }, pane: PaneSize, zoom: number): Viewport {
  return { x: pane.width / 2 - middle.x * zoom, y: pane.height / 2 - middle.y * zoom, zoom }
}

export function isReadable(zoom: number): boolean {
  return zoom >= MIN_READABLE_ZOOM
}

export function isOnScreen(middle: { x: number; y: number }, viewport: Viewport, pane: PaneSize): boolean {
  const x = middle.x * viewport.zoom + viewport.x
  const y = middle.y * viewport.zoom + viewport.y
  return x >= 0 && y >= 0 && x <= pane.width && y <= pane.height
}

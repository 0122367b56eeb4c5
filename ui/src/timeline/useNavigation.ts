// Zoom, pan and reset of a timeline.
import { useLayoutEffect, useRef, type KeyboardEvent } from 'react'
import type { Iso } from '../api/messages'
import type { Scene } from './draw'
import { isWhole, panView, toTime, viewWhole, zoomView, type Interval, type View } from './scale'
import { useSettled } from './useCanvas'

const ZOOM_STEP = 0.5
const PAN_STEP_SHARE = 0.2
const WINDOW_SETTLES_MS = 200

export interface Navigation {
  zoomIn: () => void
  zoomOut: () => void
  reset: () => void
  // Zoom so that what was at a pixel is then at another; false where nothing changed.
  zoomAt: (factor: number, x: number, toX: number) => boolean
  panBy: (pixels: number) => void
  onKeyDown: (event: KeyboardEvent) => void
}

export function useNavigation(
  scene: Scene,
  setWindow: (window: Interval | null) => void,
  onWindow: (from: Iso, to: Iso, isWhole: boolean) => void,
): Navigation {
  const { axis, left, width } = scene.scale
  // Several moves of a pointer may come before the next drawing: each goes on from the one before.
  const latest = useRef(scene.scale.view)
  useLayoutEffect(() => {
    latest.current = scene.scale.view
  }, [scene.scale.view])
  const reportWindow = useSettled(onWindow, WINDOW_SETTLES_MS)
  const show = (next: View): void => {
    latest.current = next
    const isAll = isWhole(axis, next)
    const shown = { from: toTime(axis, next.from), to: toTime(axis, next.to) }
    setWindow(isAll ? null : shown)
    reportWindow(toIso(shown.from), toIso(shown.to), isAll)
  }
  const zoomMiddle = (factor: number) => {
    const { from, to } = latest.current
    show(zoomView(axis, latest.current, factor, (from + to) / 2))
  }
  const panShare = (share: number) => {
    const { from, to } = latest.current
    show(panView(axis, latest.current, share * (to - from)))
  }
  const zoomIn = () => zoomMiddle(ZOOM_STEP)
  const zoomOut = () => zoomMiddle(1 / ZOOM_STEP)
  const reset = () => show(viewWhole(axis))
  const keys: Record<string, () => void> = {
    '+': zoomIn,
    '-': zoomOut,
    '0': reset,
    ArrowLeft: () => panShare(-PAN_STEP_SHARE),
    ArrowRight: () => panShare(PAN_STEP_SHARE),
  }
  return {
    zoomIn,
    zoomOut,
    reset,
    zoomAt: (factor, x, toX) => {
      const view = latest.current
      if (x < left || (factor > 1 && isWhole(axis, view))) return false
      const at = view.from + ((x - left) / width) * (view.to - view.from)
      const zoomed = zoomView(axis, view, factor, at)
      show(panView(axis, zoomed, ((x - toX) / width) * (zoomed.to - zoomed.from)))
      return true
    },
    panBy: (pixels) => panShare(-pixels / width),
    onKeyDown: (event) => {
      const action = keys[event.key]
      if (action === undefined || event.ctrlKey || event.metaKey || event.altKey) return
      event.preventDefault()
      event.stopPropagation()
      action()
    },
  }
}

export function toIso(time: number): Iso {
  return new Date(time).toISOString()
}

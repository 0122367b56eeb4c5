// What a canvas has to know of the page: its size, the colours of the theme, and when it is due.
import { useCallback, useEffect, useRef, useState, type RefObject } from 'react'
import { drawTimeline, type Scene } from './draw'
import { paintCalls, readPalette, type Palette } from './paint'

export interface Size {
  width: number
  height: number
}

export function useElementSize(element: RefObject<HTMLElement | null>): Size {
  const [size, setSize] = useState<Size>({ width: 0, height: 0 })
  useEffect(() => {
    if (element.current === null) return
    const observer = new ResizeObserver(([entry]) => {
      const { width, height } = entry!.contentRect
      setSize({ width: Math.floor(width), height: Math.ceil(height) })
    })
    observer.observe(element.current)
    return () => observer.disconnect()
  }, [element])
  return size
}

// The colours of the page, read again when the theme changes.
export function usePalette(element: RefObject<Element | null>): Palette | null {
  const [palette, setPalette] = useState<Palette | null>(null)
  useEffect(() => {
    const read = () => {
      if (element.current !== null) setPalette(readPalette(element.current))
    }
    read()
    const observer = new MutationObserver(read)
    observer.observe(document.documentElement, { attributes: true, attributeFilter: ['data-theme', 'class'] })
    return () => observer.disconnect()
  }, [element])
  return palette
}

// Paint the scene in the next frame, if it is another one than was painted last.
export function usePaintedScene(canvas: RefObject<HTMLCanvasElement | null>, scene: Scene, palette: Palette | null): void {
  useEffect(() => {
    if (palette === null) return
    const frame = requestAnimationFrame(() => {
      if (canvas.current !== null) paintScene(canvas.current, scene, palette)
    })
    return () => cancelAnimationFrame(frame)
  }, [canvas, scene, palette])
}

export function paintScene(canvas: HTMLCanvasElement, scene: Scene, palette: Palette): void {
  const context = canvas.getContext('2d')
  if (context === null || scene.width === 0) return
  const ratio = devicePixelRatio
  const width = Math.round(scene.width * ratio)
  const height = Math.round(scene.height * ratio)
  if (canvas.width !== width || canvas.height !== height) {
    canvas.width = width
    canvas.height = height
    canvas.style.width = `${scene.width}px`
    canvas.style.height = `${scene.height}px`
  }
  context.setTransform(ratio, 0, 0, ratio, 0, 0)
  paintCalls(context, drawTimeline(scene), palette)
}

// A function that calls `report` with its last arguments once nothing new came for `delayMs`.
export function useSettled<T extends unknown[]>(report: (...values: T) => void, delayMs: number): (...values: T) => void {
  const current = useRef(report)
  const timer = useRef<number | undefined>(undefined)
  useEffect(() => {
    current.current = report
  })
  useEffect(() => () => clearTimeout(timer.current), [])
  return useCallback(
    (...values: T) => {
      clearTimeout(timer.current)
      timer.current = window.setTimeout(() => current.current(...values), delayMs)
    },
    [delayMs],
  )
}

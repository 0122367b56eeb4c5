import { useEffect, useRef, useState } from 'react'
import type { Iso } from '../api/messages'
import type { SpanView } from '../api/types'
import { parseMoment } from './moments'
import { describeHit, describeTimeline, hasItems } from './describe'
import { AXIS_HEIGHT_PX, LANE_HEIGHT_PX, type Scene } from './draw'
import { findHit, isOnCursor } from './hit'
import { LaneTable } from './LaneTable'
import { pixelToTime, type Interval } from './scale'
import styles from './Timeline.module.css'
import { useElementSize, usePaintedScene, usePalette, useSettled } from './useCanvas'
import { useGestures } from './useGestures'
import { toIso, useNavigation, type Navigation } from './useNavigation'
import { useScene, type SceneInput } from './useScene'

export interface TimelineProps extends SceneInput {
  onSelect: (step: string) => void
  // A command of a loop was chosen: closer than commands are their items.
  onCommand: (span: SpanView) => void
  onCursor: (at: Iso) => void
  // The reader looks at another part of the time. The page may then give its `detail`, if `data` is not exact.
  onWindow: (from: Iso, to: Iso, isWhole: boolean) => void
  // The part of the time that the page wants to show; null for all of it. What `onWindow` was told need not come back.
  window?: TimeWindow | null
}

interface TimeWindow {
  from: Iso
  to: Iso
}

interface NotePlace {
  x: number
  y: number
  lines: string[]
}

const CURSOR_SETTLES_MS = 80
const CURSOR_GIVE_UP_MS = 1_500
const NOTE_WIDTH_PX = 240
const NOTE_DISTANCE_PX = 14

// A lane per step over time. The canvas shows, `data` says what; the server has aggregated it.
export function Timeline(props: TimelineProps) {
  const scroller = useRef<HTMLDivElement>(null)
  const canvas = useRef<HTMLCanvasElement>(null)
  const size = useElementSize(scroller)
  const palette = usePalette(canvas)
  const [top, setTop] = useState(0)
  const { window, setWindow, tellWindow } = useWindow(props.window ?? null, props.onWindow)
  const [draggedTo, setDraggedTo] = useDraggedCursor(props.cursorAt)
  const [pointer, setPointer] = useState<{ x: number; y: number } | null>(null)
  const { scene, extent, lanes } = useScene(props, { size, top, window, draggedTo })
  const navigation = useNavigation(scene, setWindow, tellWindow)
  const reportCursor = useSettled(props.onCursor, CURSOR_SETTLES_MS)
  usePaintedScene(canvas, scene, palette)
  useGestures(canvas, {
    grabsCursor: (x, y) => isOnCursor(scene, x) || (y < AXIS_HEIGHT_PX && x >= scene.scale.left),
    moveCursor: (x, isLast) => {
      const time = Math.min(Math.max(pixelToTime(scene.scale, x), extent.from), extent.to)
      setDraggedTo(time, isLast)
      reportCursor(toIso(time))
    },
    pan: navigation.panBy,
    zoom: navigation.zoomAt,
    click: (x, y) => {
      const hit = findHit(scene, x, y)
      if (hit?.on === 'lane' && hit.span !== null && hasItems(hit.span)) props.onCommand(hit.span)
      else if (hit?.on === 'lane' || hit?.on === 'label') props.onSelect(hit.step)
    },
    hover: setPointer,
    reset: navigation.reset,
  })
  const note = pointer === null ? null : findNote(scene, pointer.x, pointer.y)
  return (
    <div className={styles.timeline}>
      <ZoomButtons navigation={navigation} />
      <div
        ref={scroller}
        className={styles.scroller}
        role="group"
        aria-label="Lanes of the timeline"
        tabIndex={0}
        onScroll={(event) => setTop(event.currentTarget.scrollTop)}
        onKeyDown={navigation.onKeyDown}
      >
        <div style={{ height: AXIS_HEIGHT_PX + lanes.length * LANE_HEIGHT_PX }}>
          <canvas ref={canvas} className={styles.canvas} role="img" aria-label={describeTimeline(lanes, extent)} />
        </div>
      </div>
      {note !== null && <Note note={note} width={size.width} />}
      <LaneTable lanes={lanes} origin={scene.origin} first={Math.floor(top / LANE_HEIGHT_PX)} />
    </div>
  )
}

// Where the reader has put the cursor, until the page follows: the line must not jump back while the state is fetched.
function useDraggedCursor(cursorAt: Iso | null): [number | null, (time: number, isLast: boolean) => void] {
  const [draggedTo, setDraggedTo] = useState<number | null>(null)
  const isDragging = useRef(false)
  const giveUp = useRef<number | undefined>(undefined)
  useEffect(() => {
    if (!isDragging.current) setDraggedTo(null)
  }, [cursorAt])
  useEffect(() => () => clearTimeout(giveUp.current), [])
  const drag = (time: number, isLast: boolean) => {
    isDragging.current = !isLast
    setDraggedTo(time)
    clearTimeout(giveUp.current)
    // The page may find that the state at this moment is the one that it shows.
    if (isLast) giveUp.current = globalThis.setTimeout(() => setDraggedTo(null), CURSOR_GIVE_UP_MS)
  }
  return [draggedTo, drag]
}

function ZoomButtons({ navigation }: { navigation: Navigation }) {
  const buttons = [
    { sign: '+', label: 'Zoom in', press: navigation.zoomIn },
    { sign: '−', label: 'Zoom out', press: navigation.zoomOut },
    { sign: '↔', label: 'Show the whole time', press: navigation.reset },
  ]
  return (
    <div className={styles.zoom} role="group" aria-label="Zoom of the timeline" onKeyDown={navigation.onKeyDown}>
      {buttons.map(({ sign, label, press }) => (
        <button key={sign} type="button" className={styles.button} title={label} aria-label={label} onClick={press}>
          {sign}
        </button>
      ))}
    </div>
  )
}

function Note({ note, width }: { note: NotePlace; width: number }) {
  const isLeft = note.x + NOTE_DISTANCE_PX + NOTE_WIDTH_PX > width
  const x = isLeft ? note.x - NOTE_DISTANCE_PX - NOTE_WIDTH_PX : note.x + NOTE_DISTANCE_PX
  return (
    <div className={styles.note} style={{ left: Math.max(0, x), top: note.y + NOTE_DISTANCE_PX, width: NOTE_WIDTH_PX }}>
      {note.lines.join('\n')}
    </div>
  )
}

function findNote(scene: Scene, x: number, y: number): NotePlace | null {
  const lines = describeHit(findHit(scene, x, y), scene.origin)
  return lines.length === 0 ? null : { x, y, lines }
}

// What is shown is known here first. The page is followed when it asks for another window than it was told: by then the reader may have
// zoomed on.
function useWindow(asked: TimeWindow | null, onWindow: TimelineProps['onWindow']) {
  const [window, setWindow] = useState(() => readWindow(asked))
  const from = asked?.from ?? null
  const to = asked?.to ?? null
  const told = useRef<(string | null)[]>([from, to])
  useEffect(() => {
    if (told.current.includes(from) && told.current.includes(to)) return
    setWindow(readWindow(from === null || to === null ? null : { from, to }))
  }, [from, to])
  const tellWindow: TimelineProps['onWindow'] = (newFrom, newTo, isWhole) => {
    told.current = isWhole ? [null, newFrom, newTo] : [newFrom, newTo]
    onWindow(newFrom, newTo, isWhole)
  }
  return { window, setWindow, tellWindow }
}

function readWindow(window: TimeWindow | null): Interval | null {
  if (window === null) return null
  const interval = { from: parseMoment(window.from), to: parseMoment(window.to) }
  return interval.to > interval.from ? interval : null
}

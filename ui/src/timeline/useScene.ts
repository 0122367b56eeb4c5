// From the answer of the server to the scene that is drawn.
import { useMemo } from 'react'
import type { Iso } from '../api/messages'
import type { TimelineView } from '../api/types'
import { parseMoment } from './moments'
import type { Scene } from './draw'
import { buildLanes, findIdleTimes, insertDetail, type Lane } from './pyramid'
import { foldAxis, toAxis, toTime, viewWhole, type Axis, type Interval, type View } from './scale'
import type { Size } from './useCanvas'

export interface SceneInput {
  data: TimelineView
  detail?: TimelineView | null
  startedAt: Iso
  endedAt: Iso | null
  cursorAt: Iso | null
  selected: string | null
  foldIdle: boolean
}

// What changes by hand, and not by the data.
export interface SceneState {
  size: Size
  top: number
  window: Interval | null
  draggedTo: number | null
}

const WIDE_GUTTER_PX = 132
const NARROW_GUTTER_PX = 96
const NARROW_PX = 560
const RIGHT_MARGIN_PX = 14

export function useScene(input: SceneInput, state: SceneState): { scene: Scene; extent: Interval; lanes: Lane[] } {
  const { data, detail = null, startedAt, endedAt, cursorAt, selected, foldIdle } = input
  const { size, top, window, draggedTo } = state
  const lanes = useMemo(() => buildLanes(data), [data])
  const detailLanes = useMemo(() => (detail === null ? [] : buildLanes(detail)), [detail])
  const origin = parseMoment(startedAt)
  const extent = useMemo(() => findExtent(data, lanes, origin, endedAt), [data, lanes, origin, endedAt])
  const axis = useMemo(() => foldAxis(extent, foldIdle ? findIdleTimes(lanes, extent) : []), [extent, lanes, foldIdle])
  const scene = useMemo(() => {
    const view = findView(axis, window)
    const hasDetail = detail !== null && covers(detail, axis, view)
    const left = size.width < NARROW_PX ? NARROW_GUTTER_PX : WIDE_GUTTER_PX
    return {
      lanes: hasDetail ? insertDetail(lanes, detailLanes) : lanes,
      marks: hasDetail ? detail.marks : data.marks,
      scale: { axis, view, left, width: Math.max(1, size.width - left - RIGHT_MARGIN_PX) },
      origin,
      // While the page is live, the cursor stands at the end, where it can be taken.
      cursor: draggedTo ?? (cursorAt === null ? extent.to : parseMoment(cursorAt)),
      selected,
      width: size.width,
      height: size.height,
      top,
    }
  }, [axis, window, detail, detailLanes, lanes, data, size, origin, draggedTo, cursorAt, extent, selected, top])
  return { scene, extent, lanes }
}

function findExtent(data: TimelineView, lanes: Lane[], origin: number, endedAt: Iso | null): Interval {
  const findEnd = (lane: Lane) => {
    const lastAt = data.steps[lane.step]?.last_at ?? null
    return lane.table === null && lastAt !== null ? parseMoment(lastAt) : lane.to
  }
  const ends = lanes.map(findEnd)
  const end = endedAt === null ? parseMoment(data.to) : parseMoment(endedAt)
  return { from: origin, to: Math.max(end, origin + 1, ...ends.filter(Number.isFinite)) }
}

function findView(axis: Axis, window: Interval | null): View {
  if (window === null) return viewWhole(axis)
  const from = Math.max(0, toAxis(axis, window.from))
  const to = Math.min(axis.length, toAxis(axis, window.to))
  return to > from ? { from, to } : viewWhole(axis)
}

function covers(detail: TimelineView, axis: Axis, view: View): boolean {
  const toleranceMs = 1
  const isAfterStart = parseMoment(detail.from) <= toTime(axis, view.from) + toleranceMs
  const isBeforeEnd = parseMoment(detail.to) >= toTime(axis, view.to) - toleranceMs
  return isAfterStart && isBeforeEnd
}

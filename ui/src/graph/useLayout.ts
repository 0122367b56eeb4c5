import { useEffect, useMemo, useState } from 'react'
import type { GraphView } from '../api/types'
import { makeWorkerUrl } from '../parts/trusted'
import { layOutColumns } from './columns'
import type { Direction, Layout, LayoutRequest } from './layout'
import workerUrl from './layout.worker?worker&url'
import { makeLayoutRequest } from './request'

const DEADLINE_MS = 2_000

// The layout of a graph, computed beside the page. Null until it is known; the one before is kept until the next is there.
export function useLayout(graph: GraphView, direction: Direction): Layout | null {
  const [layout, setLayout] = useState<{ key: string; layout: Layout } | null>(null)
  const request = useMemo(() => makeLayoutRequest(graph, direction), [graph, direction])
  // Graphs that are fetched again are equal, but not the same.
  const key = useMemo(() => JSON.stringify(request), [request])
  useEffect(() => computeLayout(JSON.parse(key) as LayoutRequest, (found) => setLayout({ key, layout: found })), [key])
  if (layout === null) return null
  const isCurrent = layout.key === key
  return isCurrent || hasAllSteps(layout.layout, request) ? layout.layout : null
}

function hasAllSteps(layout: Layout, request: LayoutRequest): boolean {
  return request.steps.every((step) => step in layout.steps) && request.arcs.every((arc) => arc.id in layout.arcs)
}

// Ask a worker, and place steps in columns when it does not answer in time. Returns how to give up.
function computeLayout(request: LayoutRequest, onLayout: (layout: Layout) => void): () => void {
  const worker = new Worker(makeWorkerUrl(workerUrl), { type: 'module' })
  const stop = () => {
    clearTimeout(deadline)
    worker.terminate()
  }
  const fallBack = () => {
    stop()
    onLayout(layOutColumns(request))
  }
  const deadline = setTimeout(fallBack, DEADLINE_MS)
  worker.addEventListener('message', (message: MessageEvent<Layout>) => {
    stop()
    onLayout(message.data)
  })
  worker.addEventListener('error', fallBack)
  worker.postMessage(request)
  return stop
}

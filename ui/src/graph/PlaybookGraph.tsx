import '@xyflow/react/dist/base.css'
import { ReactFlow, ReactFlowProvider, useReactFlow, useStore, type ReactFlowState } from '@xyflow/react'
import { memo, useCallback, useEffect, useMemo, useRef, useState, type MouseEvent } from 'react'
import type { GraphView, PageArcView, PageStepView } from '../api/types'
import { ArcLayer } from './ArcLayer'
import { centre, chooseViewport, findArea, fitLayout, isOnScreen, isReadable, type Area, type Viewport } from './area'
import { addSkips, describeGraph, findFocus, noteStep } from './facts'
import styles from './Graph.module.css'
import { STEP_HEIGHT_PX, STEP_WIDTH_PX, type Direction, type Layout } from './layout'
import { StepList } from './StepList'
import { StepNode, type StepNodeType } from './StepNode'
import { exportSvg, readColours } from './svg'
import { useLayout } from './useLayout'

export interface PlaybookGraphProps {
  graph: GraphView
  steps: Record<string, PageStepView>
  arcs: Record<string, PageArcView>
  selected: string | null
  onSelect: (step: string) => void
  direction: Direction
}

// More steps than this are single elements, and of more than that only what is on the screen is in the page.
const MAX_FULL_STEPS = 100
const MAX_KEPT_STEPS = 40
const MIN_ZOOM = 0.02
const MAX_ZOOM = 2
const ZOOM_STEP = 1.4
const NOTE_WIDTH_PX = 280
const NODE_TYPES = { step: StepNode }

// The playbook that ran, with the state of its steps and arcs. The picture is for the eye; the list of steps says the same and takes
// the focus.
export function PlaybookGraph(props: PlaybookGraphProps) {
  return (
    <ReactFlowProvider>
      <GraphPane {...props} />
    </ReactFlowProvider>
  )
}

function GraphPane(props: PlaybookGraphProps) {
  const { steps, arcs, selected, onSelect, direction } = props
  const graph = useMemo(() => addSkips(props.graph), [props.graph])
  const layout = useLayout(graph, direction)
  const pane = useRef<HTMLDivElement>(null)
  const { note, showNote } = useNote(pane)
  useViewport(layout, graph, steps, selected)
  return (
    <div className={styles.pane} ref={pane}>
      <StepList graph={graph} steps={steps} selected={selected} onSelect={onSelect} />
      <div className={styles.picture} role="img" aria-label={describeGraph(graph, steps)}>
        {layout !== null && (
          <Picture
            graph={graph}
            steps={steps}
            arcs={arcs}
            selected={selected}
            layout={layout}
            onSelect={onSelect}
            onHover={showNote}
          />
        )}
      </div>
      <a className={styles.credit} href="https://reactflow.dev" target="_blank" rel="noreferrer">
        React Flow
      </a>
      {layout !== null && <Tools layout={layout} onExport={() => saveSvg({ ...props, graph }, layout, pane.current!)} />}
      {note !== null && (
        <div className={styles.note} style={{ left: note.x, top: note.y, width: NOTE_WIDTH_PX }}>
          {note.lines.join('\n')}
        </div>
      )}
    </div>
  )
}

interface PictureProps {
  graph: GraphView
  steps: Record<string, PageStepView>
  arcs: Record<string, PageArcView>
  selected: string | null
  layout: Layout
  onSelect: (step: string) => void
  onHover: (lines: string[] | null, event: MouseEvent) => void
}

const Picture = memo(function Picture(props: PictureProps) {
  const { graph, steps, arcs, selected, layout, onSelect, onHover } = props
  const isSimple = graph.steps.length > MAX_FULL_STEPS
  const isCulled = graph.steps.length > MAX_KEPT_STEPS
  const isOutline = useStore((store) => isCulled && !isReadable(store.transform[2]))
  const area = useStore(isCulled && !isOutline ? selectArea : selectNoArea, isSameArea)
  const nodes = useMemo(
    () => graph.steps.map((step) => makeNode(step, steps[step.name], layout, step.name === selected, isSimple)),
    [graph, steps, layout, selected, isSimple],
  )
  return (
    <ReactFlow
      nodes={nodes}
      edges={[]}
      nodeTypes={NODE_TYPES}
      minZoom={MIN_ZOOM}
      maxZoom={MAX_ZOOM}
      nodesDraggable={false}
      nodesConnectable={false}
      nodesFocusable={false}
      edgesFocusable={false}
      elementsSelectable={false}
      disableKeyboardA11y
      zoomOnDoubleClick={false}
      deleteKeyCode={null}
      selectionKeyCode={null}
      multiSelectionKeyCode={null}
      onlyRenderVisibleElements={isCulled}
      className={isOutline ? styles.outline : undefined}
      // The credit stands beside the picture: a picture has no links.
      proOptions={{ hideAttribution: true }}
      onNodeClick={(_, node) => onSelect(node.id)}
      onNodeMouseEnter={(event, node) => onHover(noteStep(node.data.step, node.data.view), event)}
      onNodeMouseLeave={(event) => onHover(null, event)}
    >
      <ArcLayer graph={graph} arcs={arcs} layout={layout} isOutline={isOutline} area={area} onHover={onHover} />
    </ReactFlow>
  )
})

function makeNode(
  step: GraphView['steps'][number],
  view: PageStepView | undefined,
  layout: Layout,
  isSelected: boolean,
  isSimple: boolean,
): StepNodeType {
  const middle = layout.steps[step.name]!
  return {
    id: step.name,
    type: 'step',
    position: { x: middle.x - STEP_WIDTH_PX / 2, y: middle.y - STEP_HEIGHT_PX / 2 },
    width: STEP_WIDTH_PX,
    height: STEP_HEIGHT_PX,
    data: { step, view, isSelected, isSimple },
  }
}

function selectArea(store: ReactFlowState): Area | null {
  const [x, y, zoom] = store.transform
  return findArea({ x, y, zoom }, store)
}

function selectNoArea(): Area | null {
  return null
}

function isSameArea(a: Area | null, b: Area | null): boolean {
  if (a === null || b === null) return a === b
  return a.left === b.left && a.top === b.top && a.right === b.right && a.bottom === b.bottom
}

// Show the graph when its layout is there or the pane changes its size, unless the reader has moved it; and show a step that was selected
// elsewhere when it is not on the screen.
function useViewport(layout: Layout | null, graph: GraphView, steps: Record<string, PageStepView>, selected: string | null): void {
  const flow = useReactFlow()
  const width = useStore((store) => store.width)
  const height = useStore((store) => store.height)
  const shown = useRef<{ layout: Layout; viewport: Viewport } | null>(null)
  const focus = selected ?? findFocus(graph, steps)
  const latestFocus = useRef(focus)
  useEffect(() => {
    latestFocus.current = focus
  })
  useEffect(() => {
    if (layout === null || width === 0 || height === 0) return
    const before = shown.current
    const isMoved = before !== null && !isSameViewport(before.viewport, flow.getViewport())
    if (isMoved && before.layout === layout) return
    const viewport = chooseViewport(layout, { width, height }, latestFocus.current)
    shown.current = { layout, viewport }
    void flow.setViewport(viewport)
  }, [layout, width, height, flow])
  const pane = useRef({ width, height })
  useEffect(() => {
    pane.current = { width, height }
  })
  useEffect(() => {
    const middle = selected === null ? undefined : shown.current?.layout.steps[selected]
    if (middle === undefined) return
    const viewport = flow.getViewport()
    if (isOnScreen(middle, viewport, pane.current)) return
    void flow.setViewport(centre(middle, pane.current, viewport.zoom))
  }, [selected, flow])
}

function isSameViewport(a: Viewport, b: Viewport): boolean {
  return a.x === b.x && a.y === b.y && a.zoom === b.zoom
}

function Tools({ layout, onExport }: { layout: Layout; onExport: () => void }) {
  const flow = useReactFlow()
  const width = useStore((store) => store.width)
  const height = useStore((store) => store.height)
  const fit = () => void flow.setViewport(fitLayout(layout, { width, height }))
  const zoom = (factor: number) => void flow.zoomTo(flow.getZoom() * factor)
  return (
    <div className={styles.tools} role="group" aria-label="View of the graph">
      <button type="button" onClick={() => zoom(ZOOM_STEP)} aria-label="Zoom in" title="Zoom in">
        +
      </button>
      <button type="button" onClick={() => zoom(1 / ZOOM_STEP)} aria-label="Zoom out" title="Zoom out">
        −
      </button>
      <button type="button" onClick={fit} title="Show the whole graph">
        fit
      </button>
      <button type="button" onClick={onExport} title="Save the graph as an SVG file">
        SVG
      </button>
    </div>
  )
}

interface NotePlace {
  x: number
  y: number
  lines: string[]
}

const NOTE_DISTANCE_PX = 12

function useNote(pane: React.RefObject<HTMLElement | null>) {
  const [note, setNote] = useState<NotePlace | null>(null)
  const showNote = useCallback(
    (lines: string[] | null, event: MouseEvent) => {
      const box = pane.current?.getBoundingClientRect()
      if (lines === null || box === undefined) {
        setNote(null)
        return
      }
      const x = Math.min(event.clientX - box.left + NOTE_DISTANCE_PX, box.width - NOTE_WIDTH_PX)
      setNote({ x: Math.max(0, x), y: event.clientY - box.top + NOTE_DISTANCE_PX, lines })
    },
    [pane],
  )
  return { note, showNote }
}

function saveSvg({ graph, steps, arcs }: PlaybookGraphProps, layout: Layout, element: Element): void {
  const text = exportSvg(graph, steps, arcs, layout, readColours(element))
  const url = URL.createObjectURL(new Blob([text], { type: 'image/svg+xml' }))
  const link = document.createElement('a')
  link.href = url
  link.download = `${(graph.path ?? 'playbook').replaceAll('/', '-')}.svg`
  link.click()
  URL.revokeObjectURL(url)
}

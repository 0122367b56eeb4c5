import { describe, expect, it } from 'vitest'
import { chooseViewport, findArea, fitLayout } from './area'
import { addSkips, describeArc, describeGraph, describeStep, findFocus, labelArc, noteStep, splitLabel } from './facts'
import { layOutColumns } from './columns'
import { makeLayoutRequest } from './request'
import { makeArc, makeGraph, makeLoop, makeStep } from './samples'
import { exportSvg, type Colours } from './svg'

const GRAPH = makeGraph(['plan -> score', 'score -> report: {{ score.failed == 0 }}', 'score -> repair: else'])
const [PLAN, SCORE] = GRAPH.steps

describe('step', () => {
  it('that was not reached says so', () => {
    expect(describeStep(PLAN!, undefined)).toMatchObject({ look: { word: 'not reached' }, detail: '', isReached: false })
  })

  it('says how long it took and how often it ran', () => {
    expect(describeStep(PLAN!, makeStep('completed', { seconds: 0.536 })).detail).toBe('536 ms')
    expect(describeStep(PLAN!, makeStep('completed', { seconds: 6.21, runs: 3 })).detail).toBe('6.21 s · 3 runs')
  })

  it('says what it waits for', () => {
    const waits = { on: 'approval' as const, name: 'release', since: null, until: null, child: null, pool: null, task: null, question: {} }
    expect(describeStep(PLAN!, makeStep('waiting', { waits })).detail).toBe('for an approval')
  })

  it('with a loop has a meter, and tells the time left once enough items ended', () => {
    const early = makeLoop({ total: 1_000, done: 19, ok: 19, rate: 12, seconds_left: 80 })
    expect(describeStep(SCORE!, makeStep('running', { loop: early })).detail).toBe('2 % · 12/s')
    const later = makeLoop({ total: 1_000, done: 50, ok: 49, failed: 1, rate: 12, seconds_left: 80 })
    const facts = describeStep(SCORE!, makeStep('running', { loop: later }))
    expect(facts.detail).toBe('5 % · 1 ◆ · 1 min 20 s left')
    expect(facts.meter).toEqual({ okShare: 0.049, failedShare: 0.001, skippedShare: 0 })
    const ended = makeLoop({ total: 100_000, done: 100_000, ok: 99_997, failed: 3 })
    expect(describeStep(SCORE!, makeStep('failed', { loop: ended })).detail).toBe('99\u202f997 ok · 3 ◆')
  })

  it('tells its error to the pointer', () => {
    const view = makeStep('failed', { error: { code: 'PYTHON_ERROR', message: 'no such row' } })
    expect(noteStep(PLAN!, view)).toEqual(['plan: failed', 'python', 'PYTHON_ERROR: no such row'])
  })
})

describe('arc', () => {
  const arc = GRAPH.arcs[1]!

  it('has a label of 32 characters at most, in two lines', () => {
    expect(labelArc(arc)).toBe('score.failed == 0')
    const long = labelArc({ ...arc, when: '{{ score.failed == 0 and score.ok > 100 }}' })
    expect(long).toBe('score.failed == 0 and score.ok …')
    expect(long).toHaveLength(32)
    expect(splitLabel(long)).toEqual(['score.failed == 0', 'and score.ok …'])
    expect(splitLabel('else')).toEqual(['else'])
    expect(splitLabel('')).toEqual([])
    expect(labelArc(GRAPH.arcs[0]!)).toBe('')
    expect(labelArc(GRAPH.arcs[2]!)).toBe('else')
  })

  it('has the verdict with its count', () => {
    expect(describeArc(arc, undefined)).toMatchObject({ state: 'untried', mark: '' })
    expect(describeArc(arc, makeArc({ taken: 1, false: 5 }))).toMatchObject({ state: 'taken', mark: '✓' })
    expect(describeArc(arc, makeArc({ taken: 12 }))).toMatchObject({ mark: '✓12' })
    expect(describeArc(arc, makeArc({ taken: 5_000 }))).toMatchObject({ mark: '✓99+' })
    expect(describeArc(arc, makeArc({ false: 2 }))).toMatchObject({ state: 'false', mark: '×2' })
    expect(describeArc(arc, makeArc({ error: 1, false: 2 }))).toMatchObject({ state: 'error', mark: '!' })
  })

  it('tells the whole condition and the values to the pointer', () => {
    const view = makeArc({ false: 2, last: { verdict: 'false', saw: { 'score.failed': 3, names: ['a'] }, seq: 9 } })
    expect(describeArc(arc, view).note).toEqual([
      'score → report, line 2',
      '{{ score.failed == 0 }}',
      'false 2 times',
      'score.failed = 3',
      'names = ["a"]',
    ])
  })
})

describe('skip', () => {
  const skip = { from: 'score', to: 'report', rule: 1, line: 7, when: '{{ workload.n > 3 }}' }

  it('is drawn as an arc with its rule', () => {
    const graph = addSkips({ ...GRAPH, skips: [skip, { ...skip, rule: 2, when: null }] })
    const [ruled, other] = graph.arcs.slice(GRAPH.arcs.length)
    expect(labelArc(ruled!)).toBe('skip if workload.n > 3')
    expect(labelArc(other!)).toBe('skip')
    expect(describeArc(ruled!, undefined)).toMatchObject({ state: 'untried', mark: '' })
    expect(describeArc(ruled!, makeArc({ taken: 2 }))).toMatchObject({ state: 'taken', mark: '✓2' })
    expect(describeArc(ruled!, undefined).note).toEqual([
      'score → report, line 7',
      'if its admission rule skips score',
      '{{ workload.n > 3 }}',
    ])
  })

  it('has a place in the layout', () => {
    const request = makeLayoutRequest(addSkips({ ...GRAPH, skips: [skip] }), 'LR')
    expect(request.arcs.map((arc) => arc.id)).toContain('score:skip:1')
    expect(layOutColumns(request).arcs).toHaveProperty('score:skip:1')
  })
})

describe('graph', () => {
  it('has a name for those who do not see it', () => {
    const steps = { plan: makeStep('completed'), score: makeStep('failed') }
    expect(describeGraph(GRAPH, steps)).toBe(
      'Graph of 4 steps: 1 completed, 1 failed, 2 not reached. The list of steps says the same.',
    )
  })

  it('shows the failure first, else what runs, else the beginning', () => {
    expect(findFocus(GRAPH, { report: makeStep('failed'), plan: makeStep('running') })).toBe('report')
    expect(findFocus(GRAPH, { score: makeStep('running') })).toBe('score')
    expect(findFocus(GRAPH, {})).toBe('plan')
  })

  it('is shown whole while it can be read, else around a step', () => {
    const small = layOutColumns(makeLayoutRequest(GRAPH, 'LR'))
    expect(chooseViewport(small, { width: 900, height: 300 }, 'score')).toEqual(fitLayout(small, { width: 900, height: 300 }))
    const large = { ...small, width: 20_000, steps: { ...small.steps, score: { x: 9_000, y: 40 } } }
    const around = chooseViewport(large, { width: 900, height: 300 }, 'score')
    expect(around.zoom).toBe(0.85)
    expect(around.x + 9_000 * around.zoom).toBeCloseTo(450)
    // The first step stands at the border, not in the middle beside an empty half.
    expect(chooseViewport(large, { width: 900, height: 300 }, 'plan').x).toBe(16)
  })

  it('moves in steps, so that a small move draws nothing new', () => {
    const pane = { width: 800, height: 400 }
    expect(findArea({ x: -10, y: -10, zoom: 1 }, pane)).toEqual(findArea({ x: -90, y: -60, zoom: 1 }, pane))
  })
})

describe('export', () => {
  const tone = { text: '#111', fill: '#222', soft: '#333' }
  const tones = { completed: tone, running: tone, waiting: tone, failed: tone, idle: tone }
  const colours: Colours = { surface: '#fff', ground: '#eee', line: '#ddd', text: '#000', muted: '#555', faint: '#888', tones }

  it('writes steps, labels and verdicts, and text only as text', () => {
    const graph = makeGraph(['plan -> score: {{ "<b>" == x & y }}'])
    const layout = layOutColumns(makeLayoutRequest(graph, 'LR'))
    const svg = exportSvg(graph, { plan: makeStep('completed') }, { 'plan:0': makeArc({ false: 1 }) }, layout, colours)
    expect(svg).toContain('&quot;&lt;b&gt;&quot; == x &amp; y ×')
    expect(svg).not.toContain('<b>')
    expect(svg).toContain('>plan</text>')
    expect(svg).toContain('stroke-dasharray="4 4"')
    expect(svg).toContain('>not reached · python</text>')
  })
})

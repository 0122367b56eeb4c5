import type { Shape, Tone } from './tone'
import { getLook } from './tone'
import styles from './Status.module.css'

// The drawings of the shapes, 14 px square.
function drawShape(shape: Shape) {
  const stroke = { fill: 'none', stroke: 'currentColor', strokeWidth: 1.6 }
  const inner = { fill: 'none', stroke: 'var(--surface)', strokeWidth: 1.6 }
  switch (shape) {
    case 'disc-tick':
      return (
        <>
          <circle cx="7" cy="7" r="6" fill="currentColor" />
          <path d="M4 7.2l2.2 2.2 3.9-4.5" {...inner} />
        </>
      )
    case 'ring-tick':
      return (
        <>
          <circle cx="7" cy="7" r="5.2" {...stroke} />
          <path d="M4.5 7.2l1.8 1.8 3.2-3.7" {...stroke} />
        </>
      )
    case 'arc':
      return <path d="M7 1.8a5.2 5.2 0 1 1-5.2 5.2" {...stroke} strokeWidth={2} strokeLinecap="round" />
    case 'clock':
      return (
        <>
          <circle cx="7" cy="7" r="5.2" {...stroke} />
          <path d="M7 4v3.2l2 1.3" {...stroke} />
        </>
      )
    case 'dotted-ring':
      return <circle cx="7" cy="7" r="5.2" {...stroke} strokeDasharray="1.8 2.280" />
    case 'bars':
      return <path d="M4 2.5h2v9H4zM8 2.5h2v9H8z" fill="currentColor" />
    case 'diamond':
      return (
        <>
          <path d="M7 .4L13.6 7 7 13.6.4 7z" fill="currentColor" />
          <path d="M7 3.6v4.200M7 9.2v1.5" {...inner} />
        </>
      )
    case 'hexagon':
      return (
        <>
          <path d="M4 1h6l3 6-3 6H4L1 7z" fill="currentColor" />
          <path d="M5 5l4 4M9 5l-4 4" {...inner} />
        </>
      )
    case 'square':
      return <rect x="2" y="2" width="10" height="10" rx="1.5" fill="currentColor" />
    case 'dash':
      return <path d="M2 7h10" {...stroke} strokeWidth={2} />
  }
}

export function ShapeIcon({ shape, tone }: { shape: Shape; tone?: Tone }) {
  const turns = shape === 'arc' ? styles.turns : ''
  const colour = tone === undefined ? '' : styles[tone]
  return (
    <svg className={`${styles.shape} ${turns} ${colour}`} viewBox="0 0 14 14" aria-hidden="true">
      {drawShape(shape)}
    </svg>
  )
}

// A status as shape and word, in its tone.
export function Status({ status, word }: { status: string; word?: string }) {
  const look = getLook(status)
  return (
    <span className={`${styles.status} ${styles[look.tone]}`}>
      <ShapeIcon shape={look.shape} />
      <span>{word ?? look.word}</span>
    </span>
  )
}

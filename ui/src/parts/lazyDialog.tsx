import type { ComponentType, ReactNode } from 'react'
import { Component, useEffect, useState } from 'react'
import { Button } from './Button'
import { whenIdle } from './idle'
import styles from './LazyDialog.module.css'

interface Closable {
  onClose: () => void
}

type Load<Props> = () => Promise<{ default: ComponentType<Props> }>

// A dialog with code of its own, which is loaded when the page is idle, or when the dialog is opened before that. A page that is open while
// its server is away has the code already; if not, the reader is told, and the page stays as it is. Some browsers remember that a script
// could not be loaded until the page is loaded again: that is done as soon as the server answers a second try. The address has the selection.
export function lazyDialog<Props extends Closable>(load: Load<Props>): ComponentType<Props> {
  let loaded: ComponentType<Props> | null = null
  let hasFailed = false
  const loadOnce = async () => {
    try {
      loaded ??= (await load()).default
    } catch (error) {
      if (hasFailed && (await doesServerAnswer())) location.reload()
      throw error
    }
  }
  whenIdle(() => void loadOnce().catch(() => undefined))

  return function LazyDialog(props: Props) {
    const [error, setError] = useState<unknown>(null)
    const [, setLoaded] = useState(loaded !== null)
    const isMissing = loaded === null && error === null
    useEffect(() => {
      if (!isMissing) return
      let isGone = false
      loadOnce().then(
        () => !isGone && setLoaded(true),
        (problem: unknown) => {
          hasFailed = true
          if (!isGone) setError(problem)
        },
      )
      return () => {
        isGone = true
      }
    }, [isMissing])
    if (error !== null) {
      return <DialogProblem text="This dialog could not be loaded." again={() => setError(null)} onClose={props.onClose} />
    }
    if (loaded === null) return null
    const Loaded = loaded
    return (
      <DialogBoundary onClose={props.onClose}>
        <Loaded {...props} />
      </DialogBoundary>
    )
  }
}

function doesServerAnswer(): Promise<boolean> {
  return fetch('/api/session').then(
    (response) => response.ok,
    () => false,
  )
}

interface DialogBoundaryProps extends Closable {
  children: ReactNode
}

// An error within a dialog ends the dialog, and nothing else.
class DialogBoundary extends Component<DialogBoundaryProps, { error: unknown }> {
  override state = { error: null }

  static getDerivedStateFromError(error: unknown) {
    return { error }
  }

  override render() {
    if (this.state.error === null) return this.props.children
    const again = () => this.setState({ error: null })
    return <DialogProblem text={`This dialog is broken: ${String(this.state.error)}`} again={again} onClose={this.props.onClose} />
  }
}

interface DialogProblemProps extends Closable {
  text: string
  again: () => void
}

function DialogProblem({ text, again, onClose }: DialogProblemProps) {
  return (
    <div className={styles.problem} role="alert">
      <span>{text} The server may be away. Nothing was changed, and this page stays as it is.</span>
      <span className={styles.buttons}>
        <Button onClick={again}>Try again</Button>
        <Button look="quiet" onClick={onClose}>
          Close
        </Button>
      </span>
    </div>
  )
}

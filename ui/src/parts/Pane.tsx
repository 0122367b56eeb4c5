import type { ReactNode } from 'react'
import { Boundary } from './Boundary'
import styles from './Pane.module.css'

interface PaneProps {
  name: string
  head?: ReactNode
  className?: string | undefined
  isLoading?: boolean
  children: ReactNode
}

// A labelled region with a heading and a body that scrolls. Loading keeps what is shown, under a thin bar.
export function Pane({ name, head, className = '', isLoading = false, children }: PaneProps) {
  return (
    <section className={`${styles.pane} ${className}`} aria-label={name}>
      <div className={styles.head}>
        <h2>{name}</h2>
        {head}
      </div>
      <div className={styles.body}>
        {isLoading && <LoadingBar />}
        <Boundary>{children}</Boundary>
      </div>
    </section>
  )
}

// A thin bar; it shows itself after 200 ms.
export function LoadingBar() {
  return <div className={styles.bar} role="progressbar" aria-label="loading" />
}

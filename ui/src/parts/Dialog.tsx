import { Dialog as Base } from '@base-ui/react/dialog'
import type { ReactNode } from 'react'
import { Button } from './Button'
import styles from './Dialog.module.css'

interface DialogProps {
  title: string
  open: boolean
  onClose: () => void
  wide?: boolean
  children: ReactNode
}

export function Dialog({ title, open, onClose, wide = false, children }: DialogProps) {
  return (
    <Base.Root open={open} onOpenChange={(isOpen) => !isOpen && onClose()}>
      <Base.Portal>
        <Base.Backdrop className={styles.backdrop} />
        <Base.Popup className={`${styles.popup} ${wide ? styles.wide : ''}`}>
          <Base.Title className={styles.title}>{title}</Base.Title>
          {children}
        </Base.Popup>
      </Base.Portal>
    </Base.Root>
  )
}

// The row of buttons at the end of a dialog.
export function DialogButtons({ children, onClose }: { children: ReactNode; onClose: () => void }) {
  return (
    <div className={styles.buttons}>
      <Button onClick={onClose}>Close</Button>
      {children}
    </div>
  )
}

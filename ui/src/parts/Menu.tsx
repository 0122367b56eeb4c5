import { Menu as Base } from '@base-ui/react/menu'
import type { ReactNode } from 'react'
import { makeButtonClass } from './Button'
import { Icon } from './Icon'
import styles from './Menu.module.css'

export interface MenuItem {
  label: string
  hint?: string
  danger?: boolean
  disabled?: boolean
  run: () => void
}

interface MenuProps {
  label: string
  children: ReactNode
  items: MenuItem[]
  quiet?: boolean
}

export function Menu({ label, children, items, quiet = false }: MenuProps) {
  return (
    <Base.Root>
      <Base.Trigger className={makeButtonClass(quiet ? 'quiet' : 'plain')} aria-label={label} title={label}>
        {children}
        <Icon name="chevronDown" />
      </Base.Trigger>
      <Base.Portal>
        <Base.Positioner className={styles.positioner} sideOffset={4} align="end">
          <Base.Popup className={styles.popup}>
            {items.map((item) => (
              <Base.Item
                key={item.label}
                className={`${styles.item} ${item.danger ? styles.danger : ''}`}
                disabled={item.disabled ?? false}
                onClick={item.run}
              >
                <span>{item.label}</span>
                {item.hint && <span className={styles.hint}>{item.hint}</span>}
              </Base.Item>
            ))}
          </Base.Popup>
        </Base.Positioner>
      </Base.Portal>
    </Base.Root>
  )
}

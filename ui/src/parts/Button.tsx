import type { ComponentProps } from 'react'
import type { IconName } from './Icon'
import { Icon } from './Icon'
import styles from './Button.module.css'

export type ButtonLook = 'plain' | 'primary' | 'danger' | 'quiet'

interface ButtonProps extends ComponentProps<'button'> {
  look?: ButtonLook
  icon?: IconName
  // Why the button does nothing now. It keeps the focus, so that the reason can be read.
  refusal?: string | null
}

export function makeButtonClass(look: ButtonLook = 'plain'): string {
  return `${styles.button} ${look === 'plain' ? '' : styles[look]}`
}

export function Button({ look = 'plain', icon, refusal = null, children, className = '', ...rest }: ButtonProps) {
  const refused = refusal === null ? {} : { 'aria-disabled': true, 'aria-description': refusal, title: refusal, onClick: undefined }
  return (
    <button type="button" className={`${makeButtonClass(look)} ${className}`} {...rest} {...refused}>
      {icon && <Icon name={icon} />}
      {children}
    </button>
  )
}

// A button that shows an icon only; its label is read aloud and shown on hover.
export function IconButton({ icon, label, look = 'quiet', ...rest }: ButtonProps & { icon: IconName; label: string }) {
  return (
    <button type="button" className={`${makeButtonClass(look)} ${styles.icon}`} aria-label={label} title={label} {...rest}>
      <Icon name={icon} />
    </button>
  )
}

// A button within text, underlined like a link.
export function LinkButton({ className = '', ...rest }: ComponentProps<'button'>) {
  return <button type="button" className={`${styles.link} ${className}`} {...rest} />
}

import { useNavigate } from '@tanstack/react-router'
import type { KeyboardEvent } from 'react'
import { useState } from 'react'
import { signOut } from '../api/actions'
import { askToSignIn } from '../api/signIn'
import { Dialog } from '../parts/Dialog'
import { listPageCommands } from '../parts/pageCommands'
import { chooseTheme } from '../parts/theme'
import type { Offer } from './commands'
import { offerCommands } from './commands'
import styles from './Shell.module.css'

interface CommandDialogProps {
  onClose: () => void
  onKeys: () => void
}

// Searches executions and runs commands: a field with the offers below it.
export default function CommandDialog({ onClose, onKeys }: CommandDialogProps) {
  return (
    <Dialog title="Search, or run a command" open onClose={onClose}>
      <CommandField onClose={onClose} onKeys={onKeys} />
    </Dialog>
  )
}

function CommandField({ onClose, onKeys }: CommandDialogProps) {
  const [text, setText] = useState('')
  const [index, setIndex] = useState(0)
  const run = useRunOffer(onClose, onKeys)
  const [ofPage] = useState(listPageCommands)
  const offers = offerCommands(text, ofPage)
  const onKeyDown = (event: KeyboardEvent) => {
    const moves: Record<string, number> = { ArrowDown: 1, ArrowUp: -1 }
    const move = moves[event.key]
    const chosen = offers[index]
    if (move !== undefined) setIndex((index + move + offers.length) % offers.length)
    else if (event.key === 'Enter' && chosen !== undefined) run(chosen)
    else return
    event.preventDefault()
  }
  return (
    <>
      <input
        className={styles.field}
        role="combobox"
        aria-label="id, path, words of an error, or a command"
        aria-expanded="true"
        aria-controls="offers"
        aria-activedescendant={`offer-${index}`}
        placeholder="id, path, words of an error, or a command"
        value={text}
        autoFocus
        onChange={(event) => {
          setText(event.target.value)
          setIndex(0)
        }}
        onKeyDown={onKeyDown}
      />
      <ul id="offers" role="listbox" aria-label="offers" className={styles.options}>
        {offers.map((offer, position) => (
          <li
            key={offer.label}
            id={`offer-${position}`}
            role="option"
            aria-selected={position === index}
            aria-disabled={offer.refusal != null}
            className={styles.option}
            onClick={() => run(offer)}
          >
            <span>{offer.label}</span>
            <span className={styles.hint}>{offer.hint}</span>
          </li>
        ))}
      </ul>
    </>
  )
}

function useRunOffer(onClose: () => void, onKeys: () => void): (offer: Offer) => void {
  const navigate = useNavigate()
  return ({ go, refusal }) => {
    if (refusal != null) return
    onClose()
    switch (go.to) {
      case 'execution':
        void navigate({ to: '/executions/$id', params: { id: go.id } })
        return
      case 'executions':
        void navigate({ to: '/executions', search: go.search })
        return
      case 'theme':
        chooseTheme(go.choice)
        return
      case 'keys':
        onKeys()
        return
      case 'sign-in':
        void signOut().finally(askToSignIn)
        return
      case 'page':
        go.run()
    }
  }
}

import { useState } from 'react'
import { Button } from '../parts/Button'
import { Dialog, DialogButtons } from '../parts/Dialog'
import { Menu } from '../parts/Menu'
import styles from './Executions.module.css'
import type { ListSearch } from './filter'
import { hasFilter, readListSearch } from './filter'
import type { SavedFilter } from './saved'
import { addFilter, keepFilters, readFilters } from './saved'

interface SavedFiltersProps {
  search: ListSearch
  onChange: (search: ListSearch) => void
}

// Filters with a name. The address has the filter itself, so that it can be shared.
export function SavedFilters({ search, onChange }: SavedFiltersProps) {
  const [filters, setFilters] = useState(readFilters)
  const [isNaming, setNaming] = useState(false)
  const keep = (next: SavedFilter[]) => {
    keepFilters(next)
    setFilters(next)
  }
  const isSame = (filter: SavedFilter) => JSON.stringify(readListSearch({ ...filter.search })) === JSON.stringify(search)
  const current = filters.find(isSame)
  const items = [
    ...filters.map((filter) => ({
      label: filter.name,
      hint: filter === current ? '✓' : '',
      run: () => onChange(readListSearch({ ...filter.search })),
    })),
    { label: 'Save this filter…', disabled: !hasFilter(search), run: () => setNaming(true) },
  ]
  if (current) {
    const remove = () => keep(filters.filter((filter) => filter !== current))
    items.push({ label: `Forget “${current.name}”`, disabled: false, run: remove })
  }
  return (
    <>
      <Menu label="saved filters" items={items}>
        saved{current ? `: ${current.name}` : ''}
      </Menu>
      <NameDialog
        open={isNaming}
        onClose={() => setNaming(false)}
        onName={(name) => keep(addFilter(filters, { name, search: { ...search, before: undefined } }))}
      />
    </>
  )
}

function NameDialog({ open, onClose, onName }: { open: boolean; onClose: () => void; onName: (name: string) => void }) {
  const [name, setName] = useState('')
  const save = () => {
    onName(name.trim())
    setName('')
    onClose()
  }
  return (
    <Dialog title="Save this filter" open={open} onClose={onClose}>
      <form
        className={styles.bar}
        onSubmit={(event) => {
          event.preventDefault()
          if (name.trim() !== '') save()
        }}
      >
        <input
          aria-label="name of the filter"
          placeholder="name"
          maxLength={40}
          value={name}
          onChange={(event) => setName(event.target.value)}
        />
        <span>It is kept in this browser.</span>
      </form>
      <DialogButtons onClose={onClose}>
        <Button look="primary" disabled={name.trim() === ''} onClick={save}>
          Save
        </Button>
      </DialogButtons>
    </Dialog>
  )
}

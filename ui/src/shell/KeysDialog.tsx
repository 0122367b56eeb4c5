import { Dialog, DialogButtons } from '../parts/Dialog'
import { KEY_HELP } from '../parts/keys'
import styles from './Shell.module.css'

const PLACES = ['everywhere', 'lists', 'execution'] as const

export default function KeysDialog({ onClose }: { onClose: () => void }) {
  return (
    <Dialog title="Keys" open onClose={onClose} wide>
      <div className={styles.keys}>
        {PLACES.map((place) => (
          <section key={place} aria-label={place}>
            <h3>{place}</h3>
            <dl className={styles.keyList}>
              {KEY_HELP.filter((help) => help.where === place).map((help) => (
                <div key={help.keys} style={{ display: 'contents' }}>
                  <dt>
                    <kbd className={styles.key}>{help.keys}</kbd>
                  </dt>
                  <dd>{help.does}</dd>
                </div>
              ))}
            </dl>
          </section>
        ))}
      </div>
      <DialogButtons onClose={onClose}>{null}</DialogButtons>
    </Dialog>
  )
}

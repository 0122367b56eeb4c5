import { createRoot } from 'react-dom/client'
import './tokens.css'
import './base.css'
import { App } from './App'
import { reloadReplacedPage } from './parts/replaced'
import { startTheme } from './parts/theme'

startTheme()

window.addEventListener('vite:preloadError', () => void reloadReplacedPage())

const root = document.getElementById('root')
if (root === null) throw new Error('index.html has no element with the id root')
createRoot(root).render(<App />)

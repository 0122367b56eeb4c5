// Prints what the first load of the execution page costs, and fails when it is more than it may be.

import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { gzipSync } from 'node:zlib'

const MAX_FIRST_LOAD_KB = 300
const PAGE = 'src/execution/ExecutionPage.tsx'
const dist = process.argv[2] ?? fileURLToPath(new URL('../../src/noetl/ui/dist', import.meta.url))
const manifest = JSON.parse(readFileSync(join(dist, '.vite/manifest.json'), 'utf8'))

// The entry and the page, what they import at once, their styles, and the workers, which the manifest does not name.
function listFirstLoad() {
  const files = new Set(['index.html'])
  const visit = (key) => {
    const chunk = manifest[key]
    if (chunk === undefined || files.has(chunk.file)) return
    files.add(chunk.file)
    for (const style of chunk.css ?? []) files.add(style)
    for (const imported of chunk.imports ?? []) visit(imported)
  }
  const isFirst = (key, chunk) => chunk.isEntry || key === PAGE
  for (const [key, chunk] of Object.entries(manifest)) if (isFirst(key, chunk)) visit(key)
  const assets = readdirSync(join(dist, 'assets'))
  for (const name of assets) if (name.includes('.worker-')) files.add(`assets/${name}`)
  return [...files]
}

const kilobytes = (file) => gzipSync(readFileSync(join(dist, file)), { level: 9 }).length / 1000
let total = 0
for (const file of listFirstLoad()) {
  const size = kilobytes(file)
  total += size
  console.log(`${size.toFixed(1).padStart(7)} KB  ${file}`)
}
console.log(`${total.toFixed(1).padStart(7)} KB  first load of the execution page, gzip (at most ${MAX_FIRST_LOAD_KB})`)
process.exitCode = total > MAX_FIRST_LOAD_KB ? 1 : 0

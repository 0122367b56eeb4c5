import react from '@vitejs/plugin-react'
import { defineConfig } from 'vite'

const SERVER_URL = process.env.NOETL_UI_SERVER ?? 'http://127.0.0.1:8082'

export default defineConfig({
  plugins: [react()],
  worker: { format: 'es' },
  build: {
    outDir: '../src/noetl/ui/dist',
    emptyOutDir: true,
    manifest: true,
    // The policy of the page allows no data: URLs for scripts and styles, so every asset is a file.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
  },
  server: {
    host: '127.0.0.1',
    port: 5173,
    proxy: { '/api': { target: SERVER_URL, changeOrigin: true } },
  },
})

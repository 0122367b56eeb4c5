import { defineConfig } from 'vitest/config'

// `css`: tokens.test.ts reads the text of the tokens.
export default defineConfig({ test: { include: ['src/**/*.test.ts'], css: { include: [/tokens\.css/] } } })

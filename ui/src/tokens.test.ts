import { describe, expect, test } from 'vitest'
import css from './tokens.css?raw'

// Colours are computed from tokens.css: text can be read, fills stand out, and the five tones are told apart by everybody.

type Rgb = [number, number, number]

const TONES = ['completed', 'running', 'waiting', 'failed', 'idle']
const [light = '', dark = ''] = css.split(":root[data-theme='dark']")

function readColour(theme: string, name: string): Rgb {
  const match = new RegExp(`--${name}: #([0-9a-f]{3,6});`).exec(theme)
  if (match?.[1] === undefined) throw new Error(`no colour --${name}`)
  const hex = match[1].length === 3 ? [...match[1]].map((digit) => digit + digit).join('') : match[1]
  return [0, 2, 4].map((at) => Number.parseInt(hex.slice(at, at + 2), 16) / 255) as Rgb
}

const toLinear = (value: number) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4)
const toSrgb = (value: number) => (value <= 0.0031308 ? value * 12.92 : 1.055 * value ** (1 / 2.4) - 0.055)
const clamp = (value: number) => Math.min(1, Math.max(0, value))

function measureContrast(a: Rgb, b: Rgb): number {
  const luminance = (rgb: Rgb) => {
    const [r, g, b] = rgb.map(toLinear) as Rgb
    return 0.2126 * r + 0.7152 * g + 0.0722 * b
  }
  const [high = 0, low = 0] = [luminance(a), luminance(b)].sort((x, y) => y - x)
  return (high + 0.05) / (low + 0.05)
}

// Machado, Oliveira and Fernandes (2009), severity 1.
const SIGHTS: Record<string, number[]> = {
  normal: [1, 0, 0, 0, 1, 0, 0, 0, 1],
  protan: [0.152286, 1.052583, -0.204868, 0.114503, 0.786281, 0.099216, -0.003882, -0.048116, 1.051998],
  deutan: [0.367322, 0.860646, -0.227968, 0.280085, 0.672501, 0.047413, -0.01182, 0.04294, 0.968881],
  tritan: [1.255528, -0.076749, -0.178779, -0.078411, 0.930809, 0.147602, 0.004733, 0.691367, 0.3039],
}

function see(rgb: Rgb, matrix: number[]): Rgb {
  const linear = rgb.map(toLinear)
  const rows = [0, 3, 6].map((row) => linear.reduce((sum, value, column) => sum + value * (matrix[row + column] ?? 0), 0))
  return rows.map((value) => toSrgb(clamp(value))) as Rgb
}

function toLab(rgb: Rgb): Rgb {
  const [r, g, b] = rgb.map(toLinear) as Rgb
  const xyz = [
    (0.4124564 * r + 0.3575761 * g + 0.1804375 * b) / 0.95047,
    0.2126729 * r + 0.7151522 * g + 0.072175 * b,
    (0.0193339 * r + 0.119192 * g + 0.9503041 * b) / 1.08883,
  ]
  const [x, y, z] = xyz.map((value) => (value > 0.008856 ? Math.cbrt(value) : 7.787 * value + 16 / 116)) as Rgb
  return [116 * y - 16, 500 * (x - y), 200 * (y - z)]
}

const RADIANS = Math.PI / 180

// The difference of two colours as CIEDE2000.
function measureDifference(first: Rgb, second: Rgb): number {
  const [l1, a1, b1] = toLab(first)
  const [l2, a2, b2] = toLab(second)
  const meanChroma = (Math.hypot(a1, b1) + Math.hypot(a2, b2)) / 2
  const g = 0.5 * (1 - Math.sqrt(meanChroma ** 7 / (meanChroma ** 7 + 25 ** 7)))
  const [p1, p2] = [a1 * (1 + g), a2 * (1 + g)]
  const [c1, c2] = [Math.hypot(p1, b1), Math.hypot(p2, b2)]
  const hue = (b: number, a: number) => (a === 0 && b === 0 ? 0 : (Math.atan2(b, a) / RADIANS + 360) % 360)
  const [h1, h2] = [hue(b1, p1), hue(b2, p2)]
  const isGrey = c1 * c2 === 0
  let turn = isGrey ? 0 : h2 - h1
  if (turn > 180) turn -= 360
  if (turn < -180) turn += 360
  const dl = l2 - l1
  const dc = c2 - c1
  const dh = 2 * Math.sqrt(c1 * c2) * Math.sin((turn / 2) * RADIANS)
  const lm = (l1 + l2) / 2
  const cm = (c1 + c2) / 2
  let hm = isGrey ? h1 + h2 : (h1 + h2) / 2
  if (!isGrey && Math.abs(h1 - h2) > 180) hm += h1 + h2 < 360 ? 180 : -180
  const t =
    1 -
    0.17 * Math.cos((hm - 30) * RADIANS) +
    0.24 * Math.cos(2 * hm * RADIANS) +
    0.32 * Math.cos((3 * hm + 6) * RADIANS) -
    0.2 * Math.cos((4 * hm - 63) * RADIANS)
  const sl = 1 + (0.015 * (lm - 50) ** 2) / Math.sqrt(20 + (lm - 50) ** 2)
  const sc = 1 + 0.045 * cm
  const sh = 1 + 0.015 * cm * t
  const rotation = 30 * Math.exp(-(((hm - 275) / 25) ** 2))
  const rc = 2 * Math.sqrt(cm ** 7 / (cm ** 7 + 25 ** 7))
  const rt = -rc * Math.sin(2 * rotation * RADIANS)
  return Math.sqrt((dl / sl) ** 2 + (dc / sc) ** 2 + (dh / sh) ** 2 + rt * (dc / sc) * (dh / sh))
}

test('the difference of colours agrees with published pairs', () => {
  const grey = (value: number): Rgb => [value, value, value]
  expect(measureDifference([1, 0, 0], [0, 1, 0])).toBeCloseTo(86.6, 0)
  expect(measureDifference(grey(1), grey(0))).toBeCloseTo(100, 0)
  expect(measureDifference([1, 0, 0], [1, 0, 0])).toBe(0)
})

const THEMES = [
  { name: 'light', theme: light, minDifference: 14 },
  { name: 'dark', theme: dark, minDifference: 18 },
]

describe.each(THEMES)('in the $name theme', ({ theme, minDifference }) => {
  const surfaces = ['surface', 'ground', 'sunken'].map((name) => readColour(theme, name))
  const surface = readColour(theme, 'surface')

  test.each(['text', 'text-2', 'text-3'])('%s can be read', (name) => {
    for (const ground of surfaces) expect(measureContrast(readColour(theme, name), ground)).toBeGreaterThanOrEqual(4.5)
  })

  test.each(TONES)('%s can be read, and its fill stands out', (tone) => {
    const text = readColour(theme, `${tone}-text`)
    expect(measureContrast(text, surface)).toBeGreaterThanOrEqual(5.4)
    expect(measureContrast(text, readColour(theme, `${tone}-soft`))).toBeGreaterThanOrEqual(4.5)
    expect(measureContrast(readColour(theme, `${tone}-fill`), surface)).toBeGreaterThanOrEqual(3)
  })

  test('the word on the primary button can be read', () => {
    expect(measureContrast(readColour(theme, 'on-accent'), readColour(theme, 'running-fill'))).toBeGreaterThanOrEqual(4.5)
  })

  test.each(Object.keys(SIGHTS))('tones differ in %s sight', (sight) => {
    const fills = TONES.map((tone) => see(readColour(theme, `${tone}-fill`), SIGHTS[sight] ?? []))
    for (const [index, first] of fills.entries()) {
      for (const second of fills.slice(index + 1)) {
        expect(measureDifference(first, second)).toBeGreaterThanOrEqual(minDifference)
      }
    }
  })
})

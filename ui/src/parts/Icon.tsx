const PATHS = {
  copy: 'M5 5V2.5h8.500V11H11M2.5 5H11v8.500H2.5z',
  check: 'M3 8.5l3.5 3.500L13 4.5',
  chevronDown: 'M4 6l4 4 4-4',
  chevronLeft: 'M10 3.500L5.5 8l4.5 4.5',
  chevronRight: 'M6 3.500L10.5 8 6 12.5',
  first: 'M12 3.500L7.5 8l4.5 4.500M4.5 3.5v9',
  last: 'M4 3.500L8.5 8 4 12.500M11.5 3.5v9',
  close: 'M4 4l8 8M12 4l-8 8',
  search: 'M7 2.5a4.5 4.5 0 1 0 0 9 4.5 4.5 0 0 0 0-9M10.3 10.3l3.2 3.2',
  retry: 'M13 8a5 5 0 1 1-1.6-3.700M13 2v3h-3',
  pause: 'M5.5 3.5v9M10.5 3.5v9',
  play: 'M5 3l7.5 5L5 13z',
  stop: 'M4 4h8v8H4z',
  more: 'M3 8h.01M8 8h.01M13 8h.01',
  sun: 'M8 5a3 3 0 1 0 0 6 3 3 0 0 0 0-6M8 1.5v1.500M8 13v1.500M1.5 8H3M13 8h1.500M3.4 3.4l1 1M11.6 11.6l1 1M12.6 3.4l-1 1M4.4 11.6l-1 1',
  star: 'M8 2l1.8 3.9 4.2.5-3.1 2.9.8 4.200L8 11.4l-3.7 2.1.8-4.200L2 6.4l4.2-.5z',
  external: 'M6.5 3.5h-3v9h9v-3M9 2.5h4.500V7M13.5 2.500L7.5 8.5',
} as const

export type IconName = keyof typeof PATHS

export function Icon({ name }: { name: IconName }) {
  const isDots = name === 'more'
  return (
    <svg width="16" height="16" viewBox="0 0 16 16" aria-hidden="true">
      <path
        d={PATHS[name]}
        fill="none"
        stroke="currentColor"
        strokeWidth={isDots ? 2.5 : 1.4}
        strokeLinecap="round"
        strokeLinejoin="round"
      />
    </svg>
  )
}

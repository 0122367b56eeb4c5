export { Timeline } from './Timeline'
export { extendTo } from './pyramid'

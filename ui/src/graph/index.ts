export { PlaybookGraph } from './PlaybookGraph'
export { StepList } from './StepList'

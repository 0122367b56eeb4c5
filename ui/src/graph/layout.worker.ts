import { layOutGraph, type LayoutRequest } from './layout'

const scope = self as unknown as DedicatedWorkerGlobalScope

scope.addEventListener('message', (message: MessageEvent<LayoutRequest>) => {
  scope.postMessage(layOutGraph(message.data))
})

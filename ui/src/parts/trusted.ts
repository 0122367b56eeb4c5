// The only policy of trusted types. The page makes no HTML from text: it needs a policy for the URLs of workers alone.

interface WorkerUrlPolicy {
  createScriptURL(url: string): unknown
}

interface TrustedTypesFactory {
  createPolicy(name: string, rules: { createScriptURL: (url: string) => string }): WorkerUrlPolicy
}

const factory = (globalThis as { trustedTypes?: TrustedTypesFactory }).trustedTypes
const policy = factory?.createPolicy('noetl', { createScriptURL: checkOwnOrigin })

function checkOwnOrigin(url: string): string {
  const resolved = new URL(url, location.href)
  if (resolved.origin !== location.origin) throw new TypeError(`${resolved.origin} is not the origin of this page`)
  return resolved.href
}

// The URL of a worker of this page, as the policy wants it.
export function makeWorkerUrl(url: string | URL): string {
  const text = String(url)
  return policy === undefined ? text : (policy.createScriptURL(text) as string)
}

// The nonce that the server wrote into the page: styles that primitives insert carry it.
export function readNonce(): string | undefined {
  const meta = document.querySelector<HTMLMetaElement>('meta[name="csp-nonce"]')
  return meta?.content || undefined
}

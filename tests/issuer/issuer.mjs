// An issuer of OpenID Connect for tests: the certified `oidc-provider`, with its forms to sign in, on a free port of loopback.
// The first line that it prints is its address. It lets clients register, and makes up a user of every name that is typed.
import { generateKeyPairSync } from 'node:crypto'
import { createServer } from 'node:http'
import Provider from 'oidc-provider'

const { privateKey } = generateKeyPairSync('ec', { namedCurve: 'P-256' })
const key = { ...privateKey.export({ format: 'jwk' }), kid: 'first', alg: 'ES256', use: 'sig' }
const groups = { ada: ['data-team', 'ops'], bob: ['others'] }
const server = createServer()
server.listen(0, '127.0.0.1', () => {
  const issuer = `http://127.0.0.1:${server.address().port}`
  const provider = new Provider(issuer, {
    jwks: { keys: [key] },
    claims: { openid: ['sub'], profile: ['preferred_username', 'groups'] },
    clientDefaults: { id_token_signed_response_alg: 'ES256' },
    cookies: { keys: ['test'] },
    features: { registration: { enabled: true } },
    findAccount: (_, id) => ({
      accountId: id,
      claims: () => ({ sub: id, preferred_username: id, groups: groups[id] ?? [] }),
    }),
  })
  server.on('request', provider.callback())
  console.log(issuer)
})

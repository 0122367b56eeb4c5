"""Sign-in by an issuer of OpenID Connect: authorization code with PKCE, state and nonce.

`flow` has what one sign-in of one browser is made of, `provider` talks to the issuer and checks what
it says, `service` opens the session, and `routes` reads requests. Runs in the server; `runtime`
wires it. `provider` is loaded only where an issuer is set.
"""

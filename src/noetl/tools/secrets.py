"""`secrets`: returns a handle to a secret, never the secret.

The worker that uses `{{ s.value }}` resolves it.
"""

from noetl.model.errors import Failure, NoetlError
from noetl.tools.port import Call, Failed, Outcome, Success

HANDLE_KEY = "$secret"
PROVIDERS = (None, "stored", "env")


class Secrets:
    """Checks that the secret exists. Its value is read on each use."""

    kind = "secrets"

    async def run(self, call: Call) -> Outcome:
        name = call.config.get("secret")
        provider = call.config.get("provider")
        if not isinstance(name, str) or not name:
            message = "a secret is asked for by its name"
            return Failed(Failure(code="SECRET_NAME", kind="config", message=message))
        if provider not in PROVIDERS:
            message = f"provider {provider!r} is not known here; there are env and stored"
            return Failed(Failure(code="SECRET_PROVIDER", kind="config", message=message))
        if call.secret is not None:
            try:
                await call.secret(name, provider)
            except NoetlError as error:
                message = f"step {call.identity.step} asks for {name!r}: {error}"
                return Failed(Failure(code="SECRET_MISSING", kind="auth", message=message))
        return Success({HANDLE_KEY: name, "provider": provider or "stored"})

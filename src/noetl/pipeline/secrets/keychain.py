"""`keychain.*` and `auth`: the playbook has names, and the values exist only here, while a command
runs.

An entry is resolved when a template first asks for it, once per command. The redactor learns its
values before anyone sees them.

| kind | its fields |
|---|---|
| `static` | `map`, rendered; it may use other entries |
| `credential` | those of the stored credential, `map` over them |
| `env` | `value` from the variable `env`; or, with `map`, each field from the variable it names |
| `bearer` | `token` (and the same as `value`): from `map`, a credential, or the variable `env` |
| `basic` | `username`, `password`: from `map` or a credential |
| `oauth2` | `token` (and the same as `access_token`, `value`) from `url`, for the client in `map` or a credential |
| `secret_manager` | each of `map` from the `provider`, by the name that `map` gives; without it, `value` by `credential` |
"""

import re
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from msgspec import Struct

from noetl.model.errors import Failure, InvalidInput, NoetlError, NotFound, Unavailable
from noetl.model.secret_reference import find_reference
from noetl.pipeline.failures import TaskFailed
from noetl.pipeline.secrets.redaction import Redactor
from noetl.playbook import durations
from noetl.playbook.model import KeychainEntry
from noetl.template.errors import NeedsData, TemplateError
from noetl.template.limits import EVENT_LOOP_LIMITS
from noetl.template.rendering import Renderer
from noetl.template.replay_functions import Functions
from noetl.tools.credentials.managers import SecretManagers
from noetl.tools.credentials.oauth import TokenCache
from noetl.tools.credentials.port import (
    Credentials,
    EnvCredentials,
    missing_credential,
    read_variable,
)

_SECRET_NAME = re.compile(
    r"pass|secret|token|key|auth|cookie|pin|private|credential", re.IGNORECASE
)

# The entries that this asyncio task is resolving. Parallel items may resolve the same entry.
_loading: ContextVar[tuple[str, ...]] = ContextVar("loading", default=())


class KeychainLookup(Struct, frozen=True):
    """Asked for by a template: an entry of the keychain."""

    name: str


class SecretHandle(Struct, frozen=True):
    """Asked for by a template: the secret that a handle of the tool `secrets` names."""

    name: str
    provider: str | None


class Keychain:
    """A Lazy in the scope of a command. `load` brings what a template asked for."""

    def __init__(
        self,
        entries: Sequence[KeychainEntry] = (),
        credentials: Credentials | None = None,
        redactor: Redactor | None = None,
        step: str = "",
        *,
        tokens: TokenCache | None = None,
        managers: SecretManagers | None = None,
        names: Mapping[str, Any] | None = None,
        functions: Functions | None = None,
    ) -> None:
        """`names` are visible to the templates of entries, beside the other entries."""
        self._names = names or {}
        self._functions = functions
        self._tokens = tokens or TokenCache()
        self._managers = managers or SecretManagers()
        self._step = step
        self._entries = {entry.name: entry for entry in entries}
        self._credentials = credentials or EnvCredentials()
        self.redactor = Redactor() if redactor is None else redactor
        self.held = self.redactor.open_command()
        self._known: dict[KeychainLookup | SecretHandle, Any] = {}

    def release(self) -> None:
        """The command has ended: the redactor may forget its secrets."""
        self.held.release()

    # ---- for templates ---------------------------------------------------------------------------

    def read_member(self, name: str) -> Any:
        if name not in self._entries:
            raise LookupError(name)
        return self._get_known(KeychainLookup(name))

    def read_item(self, index: int | slice) -> Any:
        raise LookupError(index)

    def read_length(self) -> int:
        return len(self._entries)

    def load_plain(self) -> Any:
        """Templates cannot read the whole keychain, only its fields."""
        return dict.fromkeys(self._entries, "***")

    def get_secret(self, name: str, provider: str | None) -> Any:
        return self._get_known(SecretHandle(name, provider))

    def _get_known(self, request: KeychainLookup | SecretHandle) -> Any:
        if request not in self._known:
            raise NeedsData(request)
        return self._known[request]

    # ---- resolving -------------------------------------------------------------------------------

    async def load(self, request: KeychainLookup | SecretHandle) -> None:
        if isinstance(request, KeychainLookup):
            self._known[request] = await self._load_entry(request.name)
        else:
            self._known[request] = await self._resolve_handle(request)

    async def resolve_auth(self, auth: Any) -> Any:
        """The value of a task's `auth`: the fields of the keychain entry or of the credential with
        that name. A map stands for itself."""
        if isinstance(auth, dict):
            self.held.register_credential("auth", auth)
            return auth
        if not isinstance(auth, str) or not auth:
            return None
        if auth not in self._entries:
            return await self._translate_errors(auth, self._read_credential(auth))
        request = KeychainLookup(auth)
        if request not in self._known:
            await self.load(request)
        return self._known[request]

    async def resolve_entry(self, name: str) -> dict[str, Any]:
        """The fields of an entry, resolved again: for work of this command that runs in another
        process and may take long."""
        if name not in self._entries:
            message = f"{self._describe_request(name)}: the playbook has no such keychain entry"
            raise _credential_failure("CREDENTIAL_MISSING", message)
        request = KeychainLookup(name)
        await self.load(request)
        fields: dict[str, Any] = self._known[request]
        return fields

    async def resolve_guarded(self, name: str, provider: str | None) -> Any:
        """Like `resolve_secret`, but raises the failure of a task."""
        return await self._translate_errors(name, self.resolve_secret(name, provider))

    async def _resolve_handle(self, handle: SecretHandle) -> Any:
        resolving = self.resolve_secret(handle.name, handle.provider)
        secret = await self._translate_errors(handle.name, resolving)
        if isinstance(secret, dict):
            return secret.get("value", secret)
        return secret

    async def resolve_secret(self, name: str, provider: str | None) -> Any:
        """The secret, for the tool `secrets`. Raises NoetlError."""
        if provider == "env":
            value = read_variable(name)
            self.held.register_secret(name, value)
            return value
        return await self._read_credential(name)

    async def _load_entry(self, name: str) -> dict[str, Any]:
        loading = _loading.get()
        if name in loading:
            circle = " → ".join([*loading, name])
            raise _credential_failure(
                "KEYCHAIN_CYCLE", f"keychain entries need each other: {circle}"
            )
        before = _loading.set((*loading, name))
        try:
            resolving = self._resolve_by_kind(self._entries[name])
            fields: dict[str, Any] = await self._translate_errors(name, resolving)
        finally:
            _loading.reset(before)
        return fields

    async def _resolve_by_kind(self, entry: KeychainEntry) -> dict[str, Any]:
        entry = await self._render_entry(entry)
        match entry.kind:
            case "static":
                return self._resolve_static(entry.name, entry.map)
            case "env":
                return self._resolve_env(entry)
            case "credential":
                return await self._merge_fields(entry)
            case "bearer":
                fields = await self._merge_fields(entry)
                token = fields.get("token", fields.get("access_token", fields.get("value")))
                return self._check_complete(
                    entry,
                    {
                        **fields,
                        "token": token,
                        "value": token,
                    },
                )
            case "basic":
                fields = await self._merge_fields(entry)
                user = fields.get("username", fields.get("user"))
                login = {"username": user, "password": fields.get("password")}
                return self._check_complete(entry, {**fields, **login})
            case "oauth2":
                return await self._resolve_oauth(entry)
            case "secret_manager":
                return await self._resolve_managed(entry)

    async def _merge_fields(self, entry: KeychainEntry) -> dict[str, Any]:
        """The fields of the entry's credential or variable, with `map` over them."""
        return {**await self._read_source(entry), **entry.map}

    async def _resolve_oauth(self, entry: KeychainEntry) -> dict[str, Any]:
        fields = await self._merge_fields(entry)
        self.held.register_credential(entry.name, fields)
        url = entry.url or fields.get("token_url")
        if not url:
            message = f"keychain entry {entry.name} (oauth2) has no url to ask for a token"
            raise _credential_failure("KEYCHAIN_INCOMPLETE", message)
        ttl_seconds = None
        if entry.ttl is not None:
            ttl_seconds = durations.parse_micros(entry.ttl) / 1_000_000
        token = await self._tokens.get(str(url), fields, entry.scope, ttl_seconds)
        tokens = {
            "token": token,
            "access_token": token,
            "value": token,
        }
        return self._check_complete(entry, {**fields, **tokens})

    async def _resolve_managed(self, entry: KeychainEntry) -> dict[str, Any]:
        """The fields that a secret manager holds."""
        names = entry.map or {"value": entry.credential or entry.name}
        provider = entry.provider or "file"
        fields: dict[str, Any] = {}
        for field, name in names.items():
            fields[field] = await self._managers.get(provider, str(name))
        if not entry.map and isinstance(fields["value"], dict):
            fields = fields["value"]
        self.held.register_credential(entry.name, fields)
        return fields

    def _check_complete(self, entry: KeychainEntry, fields: dict[str, Any]) -> dict[str, Any]:
        """The fields, if none of them is missing. The redactor learns them."""
        for name, value in fields.items():
            if value is None:
                message = f"keychain entry {entry.name} ({entry.kind}) has no {name}"
                raise _credential_failure("KEYCHAIN_INCOMPLETE", message)
        self.held.register_credential(entry.name, fields)
        return fields

    def _resolve_static(self, name: str, fields: dict[str, Any]) -> dict[str, Any]:
        """A text in the playbook is no secret, unless its name says so."""
        for field, value in fields.items():
            if _SECRET_NAME.search(field):
                self.held.register_credential(name, {field: value})
        return fields

    def _resolve_env(self, entry: KeychainEntry) -> dict[str, Any]:
        if entry.map:
            variables = {field: str(variable) for field, variable in entry.map.items()}
        else:
            variables = {"value": entry.env or ""}
        fields = {field: read_variable(variable) for field, variable in variables.items()}
        self.held.register_credential(entry.name, fields)
        return fields

    async def _read_source(self, entry: KeychainEntry) -> dict[str, Any]:
        """The fields of the entry's variable or credential."""
        if entry.env is not None:
            value = read_variable(entry.env)
            self.held.register_secret(f"{entry.name}.value", value)
            return {"value": value}
        name = entry.credential or entry.auth
        if not name:
            return {}
        return await self._read_credential(str(name))

    async def _read_credential(self, name: str) -> dict[str, Any]:
        fields = await self._credentials.get(name)
        if not isinstance(fields, dict):
            raise missing_credential(name)
        reference = find_reference(fields)
        if reference is not None:
            fields = await self._managers.resolve_reference(reference)
        self.held.register_credential(name, fields)
        return fields

    async def _render_entry(self, entry: KeychainEntry) -> KeychainEntry:
        """The entry with its templates rendered.

        The values that the entry gives are data and are not rendered again.
        """
        fields = entry.model_dump(exclude={"name", "kind"}, exclude_defaults=True)
        scope = {**self._names, "keychain": self}
        renderer = Renderer(EVENT_LOOP_LIMITS, self._functions)
        while True:
            try:
                rendered = renderer.render_value(fields, scope)
                return entry.model_copy(update=rendered)
            except NeedsData as need:
                await self.load(need.request)  # type: ignore[arg-type]  # nothing else is in that scope

    async def _translate_errors(self, name: str, resolving: Any) -> Any:
        """Await `resolving`. Errors become failures that name the step and the secret."""
        try:
            return await resolving
        except NotFound as error:
            raise _credential_failure(
                "CREDENTIAL_MISSING", f"{self._describe_request(name)}: {error}"
            ) from error
        except Unavailable as error:
            message = f"{self._describe_request(name)}: {error}"
            raise _credential_failure("CREDENTIAL_UNAVAILABLE", message, retryable=True) from error
        except (InvalidInput, TemplateError) as error:
            raise _credential_failure(
                "CREDENTIAL_INVALID", f"{self._describe_request(name)}: {_message_with_hint(error)}"
            ) from error
        except NoetlError as error:
            raise _credential_failure(
                error.code, f"{self._describe_request(name)}: {_message_with_hint(error)}"
            ) from error

    def _describe_request(self, name: str) -> str:
        if self._step:
            return f"step {self._step} asks for {name!r}"
        return name


def _message_with_hint(error: NoetlError) -> str:
    """The message with its hint, because a failure has no field for a hint."""
    if error.hint:
        return f"{error}; {error.hint}"
    return str(error)


def _credential_failure(code: str, message: str, *, retryable: bool = False) -> TaskFailed:
    return TaskFailed(
        Failure(
            code=code,
            kind="auth",
            message=message,
            retryable=retryable,
        )
    )

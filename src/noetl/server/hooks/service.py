"""Hooks: a call from outside starts the hook's playbook with the request body.

A repeated call with the same key starts nothing more.
"""

import hmac
import re
from collections.abc import Awaitable, Callable, Mapping
from hashlib import sha256
from typing import Any

from msgspec.structs import replace

from noetl.accounts.tenants import TenantStore
from noetl.model.errors import InvalidInput, NoetlError, NotAuthenticated, NotFound
from noetl.model.identity import WORKER_IDENTITY, Identity, Permission, needs, require
from noetl.model.ids import DEFAULT_TENANT, Tenant
from noetl.server.audit.recorder import AuditRecorder
from noetl.server.dispatch.playbooks import Playbooks
from noetl.server.dispatch.requests import Requests
from noetl.server.executions.service import FIRST_SEQ
from noetl.server.executions.views import StartedView
from noetl.server.hooks.views import HookedView, HooksView, HookView, UnhookedView, make_hook_view
from noetl.server.http.structs import extend_view
from noetl.server.schedules.service import check_trigger_name
from noetl.triggers.port import Hook, HookDefinition, Hooks

SIGNATURE_HEADER = "X-Hub-Signature-256"  # the header of the signature if the hook names none
SECRET_FIELD = "secret"  # the field of the credential that holds the secret
MAX_CALL_KEY_CHARS = 200
_HEADER = re.compile(r"[A-Za-z0-9\-]{1,100}", re.ASCII)
_KEY = re.compile(rf"[\x21-\x7e]{{1,{MAX_CALL_KEY_CHARS}}}")
_WORKLOAD_KEY = re.compile(r"[A-Za-z_]\w{0,99}", re.ASCII)

Reveal = Callable[[Identity, str], Awaitable[dict[str, Any]]]


class NotSigned(NoetlError):
    """The call has no valid signature of the hook's secret."""

    code = "NOT_SIGNED"


class HookService:
    """`reveal` opens a credential; the service uses it only to verify signatures."""

    def __init__(
        self,
        hooks: Hooks,
        playbooks: Playbooks,
        requests: Requests,
        reveal: Reveal,
        tenants: TenantStore,
        *,
        audit: AuditRecorder,
    ) -> None:
        self._hooks = hooks
        self._playbooks = playbooks
        self._requests = requests
        self._reveal = reveal
        self._tenants = tenants
        self._audit = audit

    @needs(Permission.WRITE)
    async def add(self, identity: Identity, call: HookDefinition) -> HookedView:
        """Store a hook; replaces the one of this name, if there is one."""
        check_trigger_name(call.name, "hook")
        for header in (call.signature_header, call.key_header):
            if header is not None and not _HEADER.fullmatch(header):
                raise InvalidInput(
                    f"{header[:100]!r} is not the name of a header", hint="letters, digits and '-'"
                )
        if call.into is not None and not _WORKLOAD_KEY.fullmatch(call.into):
            raise InvalidInput(
                f"{call.into[:100]!r} is not a workload key", hint="letters, digits and '_'"
            )
        if call.secret is None and call.signature_header is not None:
            raise InvalidInput(
                "a signature needs a secret", hint="name a stored credential with a field `secret`"
            )
        if call.secret is not None:
            await self._read_secret(identity.tenant, call.secret)
        await self._playbooks.find_catalog_entry(call.path, call.version, identity.tenant)
        replaced = await self._hooks.find_hook(identity.tenant, call.name)
        async with self._audit.record(
            identity,
            "hook.add",
            call.name,
            path=call.path,
            signed=call.secret is not None,
            replaced=replaced is not None,
        ):
            hook = await self._hooks.put_hook(call)
        return extend_view(HookedView, make_hook_view(hook), created=replaced is None)

    @needs(Permission.READ)
    async def list_page(
        self,
        identity: Identity,
        after: str = "",
        limit: int = 100,
    ) -> HooksView:
        """A page of hooks, sorted by name."""
        hooks = await self._hooks.list_hooks(identity.tenant, after, limit)
        following = hooks[-1].name if len(hooks) == limit else None
        return HooksView([make_hook_view(hook) for hook in hooks], following)

    @needs(Permission.READ)
    async def get(self, identity: Identity, name: str) -> HookView:
        return make_hook_view(await self._find_hook(identity, name))

    async def _find_hook(self, identity: Identity, name: str) -> Hook:
        hook = await self._hooks.find_hook(identity.tenant, name)
        if hook is None:
            raise _make_missing_hook(name)
        return hook

    @needs(Permission.WRITE)
    async def delete(self, identity: Identity, name: str) -> UnhookedView:
        async with self._audit.record(identity, "hook.delete", name):
            if not await self._hooks.delete(identity.tenant, name):
                raise _make_missing_hook(name)
        return UnhookedView(name)

    async def call(
        self,
        caller: Identity | None,
        name: str,
        raw: bytes,
        headers: Mapping[str, str],
        decode: Callable[[bytes], Any],
        key: str | None = None,
        tenant: str | None = None,
    ) -> StartedView:
        """Start the hook's playbook. `headers` must ignore case; the raw body is signed.

        `tenant` is the name of the tenant in the address; without one, it is the caller's, or the
        installation's own. A caller without a token needs the signature of the hook's secret, and
        does not learn which hooks and tenants there are.
        """
        hook = await self._find_called_hook(caller, tenant, name)
        if hook is None and caller is not None:
            raise _make_missing_hook(name)
        if hook is None or hook.secret is None:
            _require_operator(caller)
        assert hook is not None
        if hook.secret is not None:
            signature = headers.get(hook.signature_header or SIGNATURE_HEADER)
            secret = await self._read_secret(hook.tenant, hook.secret)
            _verify_signature(raw, signature, secret)
        if hook.key_header is not None:
            key = _read_call_key(hook, headers)
        start_key = None if key is None else f"hook:{hook.hook_id}:{key}"
        body = decode(raw) if raw.strip() else {}
        start, workload = await self._requests.prepare(
            hook.path,
            version=hook.version,
            payload=_make_hook_payload(hook, body),
            start_key=start_key,
            by=f"hook:{hook.name}",
            tenant=hook.tenant,
        )
        execution_id = await self._requests.write_start(start, workload)
        created = execution_id == start.execution_id
        return StartedView(execution_id=execution_id, created=created, seq=FIRST_SEQ)

    async def _find_called_hook(
        self, caller: Identity | None, tenant: str | None, name: str
    ) -> Hook | None:
        if tenant is None:
            return await self._hooks.find_hook(_find_hook_tenant(caller), name)
        named = await self._tenants.find_named_tenant(tenant)
        if named is None or (caller is not None and caller.tenant != named.tenant):
            return None
        return await self._hooks.find_hook(named.tenant, name)

    async def _read_secret(self, tenant: Tenant, credential: str) -> bytes:
        fields = await self._reveal(replace(WORKER_IDENTITY, tenant=tenant), credential)
        secret = fields.get(SECRET_FIELD)
        if not isinstance(secret, str) or not secret:
            raise InvalidInput(
                f"the credential {credential!r} has no field `{SECRET_FIELD}`",
                hint=f"noetl credential add {credential} --kind generic --file FILE, with a text as `{SECRET_FIELD}`",
            )
        return secret.encode()


def _find_hook_tenant(caller: Identity | None) -> Tenant:
    return DEFAULT_TENANT if caller is None else caller.tenant


def _require_operator(caller: Identity | None) -> None:
    """Raise unless the caller may start executions."""
    if caller is None:
        raise NotAuthenticated(
            "the call has neither a token nor the signature of a hook",
            hint="sign it with the hook's secret, or send `Authorization: Bearer TOKEN`",
        )
    require(caller, Permission.OPERATE)


def _verify_signature(raw: bytes, signature: str | None, secret: bytes) -> None:
    """Raise `NotSigned` if the signature is not valid. Takes the same time for any signature."""
    expected = hmac.new(secret, raw, sha256).hexdigest()
    digest = (signature or "").removeprefix("sha256=")
    if not hmac.compare_digest(digest.encode(), expected.encode()):
        raise NotSigned(
            hint="HMAC-SHA256 of the body with the hook's secret, in hex, after `sha256=`"
        )


def _read_call_key(hook: Hook, headers: Mapping[str, str]) -> str:
    """The key of the call, from the header that the hook names."""
    header = hook.key_header or ""
    key = headers.get(header, "")
    if not _KEY.fullmatch(key):
        raise InvalidInput(
            f"{header} names no call",
            hint=f"at most {MAX_CALL_KEY_CHARS} characters, none of them a space",
        )
    return key


def _make_hook_payload(hook: Hook, body: Any) -> dict[str, Any]:
    if hook.into is not None:
        return {hook.into: body}
    if not isinstance(body, dict):
        raise InvalidInput(
            "the body is not a JSON object", hint="the hook may put it under a workload key: `into`"
        )
    return body


def _make_missing_hook(name: str) -> NotFound:
    return NotFound(f"there is no hook {name!r}", hint="noetl hook list shows those there are")

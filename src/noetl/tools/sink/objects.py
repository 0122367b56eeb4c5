"""Writes objects to S3 and compatible stores, Google Cloud Storage and Azure.

They are files, named by the key of their call like those on a disk. A file is written to the disk
first, so that nobody sees one that cannot be finished. The task must name a credential: a playbook
must not use the permissions of the worker's own environment. The store is reached through a proxy in
this process, because its library resolves hosts by itself.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

from msgspec.structs import replace
from obstore import exceptions
from obstore.store import ObjectStore

from noetl.model.errors import InvalidInput
from noetl.results.tiers.objects import (
    MAX_REQUEST_BYTES,
    describe_store_error,
    is_refused,
    open_object_store,
)
from noetl.tools.egress.guard import EgressGuard
from noetl.tools.egress.proxy import EgressProxy, open_egress_proxy
from noetl.tools.port import Call
from noetl.tools.sink.files import find_target_path, write_rows
from noetl.tools.sink.records import SinkError, SinkTarget

OBJECT_SCHEMES = ("s3", "gs", "az")


async def write_object(
    guard: EgressGuard,
    target: SinkTarget,
    call: Call,
    value: Any,
) -> dict[str, Any]:
    async with open_egress_proxy(guard) as proxy:
        try:
            return await _write_through_proxy(proxy, target, call, value)
        except SinkError:
            if proxy.refused is None:
                raise
            failure = proxy.refused.to_failure()
            raise SinkError(failure.code, failure.message, kind=failure.kind) from None


async def _write_through_proxy(
    proxy: EgressProxy, target: SinkTarget, call: Call, value: Any
) -> dict[str, Any]:
    store, base, path = _open_object_bucket(target, call.auth, proxy.url)
    name, format = find_target_path(replace(target, path=path), call.key)
    url = f"{base}/{name}"
    try:
        if target.mode != "replace" and await _has_object(store, str(name)):
            return {"row_count": 0, "repeated": True, "path": url}
        with _make_draft_file(call) as draft:
            rows = await write_rows(draft, format, value)
            await store.put_async(str(name), draft, chunk_size=MAX_REQUEST_BYTES)
    except exceptions.BaseError as error:
        message = f"{url} cannot be written: {describe_store_error(error)}"
        if is_refused(error):
            raise SinkError("SINK_OBJECT", message, kind="auth") from None
        raise SinkError("SINK_OBJECT", message, kind="io", retryable=True) from None
    return {"row_count": rows, "path": url}


@contextmanager
def _make_draft_file(call: Call) -> Iterator[Path]:
    """A file in the worker's staging folder, which is private and is cleaned up after a crash."""
    folder = call.tables.staging.folder or Path(tempfile.gettempdir())
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"object-{uuid4().hex}"
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


async def _has_object(store: ObjectStore, name: str) -> bool:
    try:
        await store.head_async(name)
    except FileNotFoundError:
        return False
    return True


def _open_object_bucket(
    target: SinkTarget, auth: Any, proxy_url: str
) -> tuple[ObjectStore, str, str]:
    """The bucket, its URL, and the path in it."""
    url = urlsplit(target.path or "")
    path = url.path.lstrip("/")
    if url.scheme not in OBJECT_SCHEMES or not url.netloc or not path:
        message = "an object target needs `path`: s3://bucket/name, gs://bucket/name or az://container/name"
        raise SinkError("SINK_TARGET", message, kind="config")
    if not isinstance(auth, dict):
        message = "an object target needs `auth`: a credential with the fields that docs/credentials.md lists"
        raise SinkError("SINK_TARGET", message, kind="config")
    base = f"{url.scheme}://{url.netloc}"
    fields = {name: str(field) for name, field in auth.items()}
    is_plain_http = fields.get("endpoint", "").startswith("http://")
    for name in fields:
        if "proxy" in name.lower():
            message = (
                f"the credential of an object target has no field {name}: workers choose the proxy"
            )
            raise SinkError("SINK_TARGET", message, kind="config")
    try:
        store = open_object_store(base, allow_http=is_plain_http, proxy_url=proxy_url, **fields)
        return store, base, path
    except InvalidInput as error:
        raise SinkError("SINK_TARGET", str(error), kind="config") from None

"""A tier in an object store: S3 and stores with its API, Google Cloud Storage, Azure.

An object is written once. A small one is written by a conditional put, which the store refuses if
the key is taken. A large one is written in parts after a check that the key is free. That check is
enough: keys are derived from the attempt that writes them, so nobody else writes there, and the
reference's checksum would show a difference. Opening costs one request, which also returns the end
of the object: readers begin there.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, TypeVar

from obstore import exceptions, sign
from obstore.store import AzureStore, GCSStore, HTTPStore, ObjectStore, S3Store, from_url

from noetl.model.errors import BadReference, Conflict, InvalidInput, NotFound, StoreUnavailable
from noetl.model.ids import ExecutionId
from noetl.model.reference import (
    Address,
    Home,
    Reference,
    check_execution_id,
    make_address,
    parse_uri,
)
from noetl.results.port import ByteSource, StoredObject
from noetl.results.staging import StagedPayload
from noetl.results.tenancy import StoreTenant

# Bytes of one request. Larger objects are written and read in parts of this size, several at a time.
MAX_REQUEST_BYTES: Final = 8 << 20
TAIL_BYTES: Final = 64 << 10
_MAX_PARALLEL_PARTS = 4
_MAX_PARTS = 9_000  # the stores allow 10 000 per object
_REFUSED_ERRORS = (
    exceptions.PermissionDeniedError,
    exceptions.UnauthenticatedError,
    exceptions.InvalidPathError,
)
_FORBIDDEN_PATTERN = re.compile(
    r"status code: 40[13]\b|NoSuchBucket|bucket does not exist|ContainerNotFound"
)
_STATUS_PATTERN = re.compile(r"status code: (\d+[A-Za-z ]*)")
_CODE_PATTERN = re.compile(r"<Code>(\w+)</Code>")
T = TypeVar("T")


def open_object_store(
    url: str, *, allow_http: bool = False, proxy_url: str | None = None, **more: str
) -> ObjectStore:
    """Open the store at `url`. Options that neither `more` nor the URL gives come from the
    environment, as with any client of that cloud.
    """
    client: Any = {"allow_http": allow_http, "connect_timeout": timedelta(seconds=5)}
    if proxy_url is not None:
        client["proxy_url"] = proxy_url
    retry: Any = {"max_retries": 3, "retry_timeout": timedelta(seconds=20)}
    config: Any = more  # each cloud has its own type for these, which cannot be imported
    try:
        return from_url(url, config=config, client_options=client, retry_config=retry)
    except (exceptions.BaseError, ValueError) as error:
        raise InvalidInput(
            f"{url} cannot be used as a store: {describe_store_error(error)}",
            hint="docs/storage.md has examples",
        ) from error


class ObjectTier:
    # a reference says that the payload is large, not where it is stored: that may change
    home: Final[Home] = "disk"

    def __init__(self, store: ObjectStore, name: str, tenant: StoreTenant | None = None) -> None:
        self._store = store
        self._name = name
        self._tenant = tenant or StoreTenant()

    async def write(self, address: Address, staged: StagedPayload) -> None:
        key = self._make_key(address)
        with self._translate_errors(str(address)):
            if staged.size <= MAX_REQUEST_BYTES:
                new = await self._create_object(key, staged.read(0, staged.size))
            else:
                new = await self._upload_parts(key, staged)
            if not new and not await self._holds_payload(key, staged):
                raise Conflict(
                    f"{address} holds another payload",
                    hint="a result is written once; use another key",
                )

    async def _create_object(self, key: str, data: bytes) -> bool:
        try:
            await self._store.put_async(key, data, mode="create")
        except exceptions.AlreadyExistsError:
            return False
        return True

    async def _upload_parts(self, key: str, staged: StagedPayload) -> bool:
        try:
            await self._store.head_async(key)
        except FileNotFoundError:
            size = max(MAX_REQUEST_BYTES, staged.size // _MAX_PARTS)
            await self._store.put_async(
                key, staged.read_parts(size), chunk_size=size, max_concurrency=_MAX_PARALLEL_PARTS
            )
            return True
        return False

    async def _holds_payload(self, key: str, staged: StagedPayload) -> bool:
        stored = await self._store.get_async(key)
        if stored.meta["size"] != staged.size:
            return False
        sha = sha256()
        async for part in stored.stream():
            sha.update(part)
        return sha.hexdigest() == staged.sha256

    async def open(self, reference: Reference, size: int | None = None) -> ByteSource:
        key = self._make_key(parse_uri(reference.uri))
        asking = partial(self._call_translated, reference.uri)
        if size is not None:
            return RemoteObject(self._store, key, asking, size)
        return await asyncio.to_thread(asking, lambda: self._open_object(key, asking))

    def _open_object(self, key: str, asking: Any) -> "RemoteObject":
        try:
            found = self._store.get(key, options={"range": {"suffix": TAIL_BYTES}})
        except exceptions.NotSupportedError:  # Azure has no suffix ranges
            size = self._store.head(key)["size"]
            return RemoteObject(self._store, key, asking, size)
        tail = found.bytes().to_bytes()
        return RemoteObject(self._store, key, asking, found.meta["size"], tail)

    async def delete(self, address: Address) -> None:
        with self._translate_errors(str(address)):
            try:
                await self._store.delete_async(self._make_key(address))
            except FileNotFoundError:
                return

    async def list_objects(
        self, execution_id: ExecutionId | None = None
    ) -> AsyncIterator[StoredObject]:
        top = "".join(f"{folder}/" for folder in self._tenant.folders)
        prefix = top or None
        if execution_id is not None:
            prefix = f"{top}{check_execution_id(execution_id)}/"
        with self._translate_errors(prefix or self._name):
            async for page in self._store.list(prefix):
                for meta in page:
                    where = _parse_key(meta["path"].removeprefix(top))
                    if where is not None:
                        yield StoredObject(where, meta["size"], meta["last_modified"].timestamp())

    def _make_key(self, where: Address) -> str:
        """The object key of an address. This is the only way from an address to an object, so the
        parts are checked again.
        """
        where = make_address(where.execution_id, where.kind, where.step, where.key)
        return "/".join(
            (*self._tenant.folders, where.execution_id, where.kind, where.step, where.key)
        )

    def _call_translated(self, uri: str, ask: Callable[[], T]) -> T:
        with self._translate_errors(uri):
            return ask()

    @contextmanager
    def _translate_errors(self, uri: str) -> Iterator[None]:
        """Translate the library's errors into NoETL's errors. Errors that only an operator can
        remove are InvalidInput, so they are not retried.
        """
        try:
            yield
        except (exceptions.BaseError, OSError) as error:
            if is_refused(error):
                raise InvalidInput(
                    f"{self._name} refuses: {describe_store_error(error)}",
                    hint="look at NOETL_STORAGE_* and at the rights of its key; the bucket is not made by NoETL",
                ) from error
            if isinstance(error, FileNotFoundError):
                raise NotFound(
                    f"{uri} is gone", hint="its execution may be past retention"
                ) from error
            raise StoreUnavailable(
                f"{self._name} does not answer as it should: {describe_store_error(error)}"
            ) from error


class SignedObject:
    """An object behind a signed URL, which grants read access until it expires."""

    path: Path | None = None

    def __init__(self, url: str, size: int) -> None:
        self.size = size
        self._store = HTTPStore.from_url(
            url, client_options={"allow_http": url.startswith("http://")}
        )

    def read(self, offset: int, length: int) -> bytes:
        length = min(length, self.size - offset)
        if length <= 0:
            return b""
        return self._store.get_range("", start=offset, length=length).to_bytes()

    def close(self) -> None:
        """It holds no resource."""


class RemoteObject:
    """An object. If a request opened it, its last bytes are in memory."""

    path: Path | None = None

    def __init__(
        self,
        store: ObjectStore,
        key: str,
        asking: Callable[[Callable[[], Any]], Any],
        size: int,
        tail: bytes = b"",
    ) -> None:
        self.size = size
        self._store = store
        self._key = key
        self._call_store = asking
        self._tail = tail

    def read(self, offset: int, length: int) -> bytes:
        length = min(length, self.size - offset)
        if length <= 0:
            return b""
        tail_offset = offset - (self.size - len(self._tail))
        if tail_offset >= 0:
            return self._tail[tail_offset : tail_offset + length]
        data: bytes = self._call_store(lambda: self._fetch_range(offset, length))
        return data

    def _fetch_range(self, offset: int, length: int) -> bytes:
        if length <= MAX_REQUEST_BYTES:
            return self._store.get_range(self._key, start=offset, length=length).to_bytes()
        starts = range(offset, offset + length, MAX_REQUEST_BYTES)
        ends = [min(start + MAX_REQUEST_BYTES, offset + length) for start in starts]
        return b"".join(
            self._store.get_ranges(self._key, starts=list(starts), ends=ends, coalesce=0)
        )

    def sign_url(self, lasts: timedelta) -> str | None:
        store = self._store
        if not isinstance(store, S3Store | GCSStore | AzureStore):
            return None
        url: str = self._call_store(lambda: sign(store, "GET", self._key, lasts))
        return url

    def close(self) -> None:
        self._tail = b""


def _parse_key(path: str) -> Address | None:
    """The address of an object; None if NoETL did not write it."""
    parts = path.split("/")
    if len(parts) != 4:
        return None
    try:
        return make_address(*parts)
    except BadReference:
        return None


def is_refused(error: Exception) -> bool:
    """True if a retry is refused too, until an operator changes something."""
    return isinstance(error, _REFUSED_ERRORS) or _FORBIDDEN_PATTERN.search(str(error)) is not None


def describe_store_error(error: Exception) -> str:
    """The store's own answer in short; if there is none, the first line of the error."""
    text = str(error)
    status = _STATUS_PATTERN.search(text)
    if status is None:
        return text.partition("\n")[0][:300]
    code = _CODE_PATTERN.search(text)
    if code is None:
        return status[1].strip()
    return f"{status[1].strip()} ({code[1]})"

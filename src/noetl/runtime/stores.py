"""Opens the stores of results that the settings of a process name."""

import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from noetl.model.errors import InvalidInput
from noetl.results.port import Tier
from noetl.results.router import ResultRouter
from noetl.results.staging import Staging
from noetl.results.tenancy import StoreTenant
from noetl.results.tiers.cached import CachedTier
from noetl.results.tiers.file_pool import FilePool, WriteAllowance
from noetl.results.tiers.files import FileTier
from noetl.results.tiers.kv import BlobServers, PayloadCache
from noetl.results.tiers.large import LargeStore
from noetl.settings import StorageSettings

if TYPE_CHECKING:
    from obstore.store import ObjectStore


def open_store(
    blobs: BlobServers,
    home: Path,
    storage: StorageSettings,
    near: PayloadCache | None = None,
    tenant: StoreTenant | None = None,
) -> ResultRouter:
    """Small payloads are kept by the servers, large ones where the settings say."""
    large_results = open_large_results(home, storage, time.monotonic, tenant)
    return ResultRouter(blobs, large_results, tier=storage.default_store_tier, near=near)


def open_large_results(
    home: Path,
    storage: StorageSettings,
    now: Callable[[], float],
    tenant: StoreTenant | None = None,
) -> LargeStore:
    """The tier of large results. A remote one gets a cache on this machine."""
    tenant = tenant or StoreTenant()
    tier_store, folder = open_tier(home, storage, tenant), storage.storage_local_cache_dir
    if folder is not None or not isinstance(tier_store, FileTier):
        return _add_cache(tier_store, folder or home / "cache", storage, now, tenant)
    return LargeStore(tier_store, tier_store.staging, patience=storage.storage_patience_sec)


def connect_shared_cache(storage: StorageSettings, tenant: StoreTenant) -> PayloadCache | None:
    if storage.nats_url is None:
        return None
    from noetl.results.tiers.shared_cache import (
        SharedCache,  # loads NATS, which most processes do not need
    )

    return SharedCache(storage.nats_url.reveal(), tenant=tenant)


def open_tier(home: Path, storage: StorageSettings, tenant: StoreTenant | None = None) -> Tier:
    """The durable store of large results."""
    match storage.storage_cloud_tier:
        case None:
            return FileTier(home / "results", tenant=tenant)
        case url if url.startswith("file://"):
            folder = directory_from_url(url)
            return FileTier(folder, ours=False, once=home / "staging", tenant=tenant)
        case url:
            return _open_objects(url, storage, tenant)


def _add_cache(
    tier_store: Tier,
    folder: Path,
    storage: StorageSettings,
    now: Callable[[], float],
    tenant: StoreTenant,
) -> LargeStore:
    """The tier behind a cache.

    Files are staged on the disk of the cache, so that the cache can take them without copying.
    """
    folder = folder.expanduser().absolute()
    name = f"{storage.storage_endpoint} {storage.storage_cloud_tier}"
    place = folder / sha256(name.encode()).hexdigest()[:16]  # a folder for each store
    allowance = WriteAllowance(storage.storage_local_cache_rate, now)
    meta = FilePool(place / "meta", storage.storage_local_cache_meta_bytes, allowance)
    data = FilePool(place / "data", storage.storage_local_cache_bytes, allowance)
    staging = Staging(folder / "staging")
    cached = CachedTier(tier_store, meta, data, tenant)
    return LargeStore(cached, staging, patience=storage.storage_patience_sec)


def _open_objects(url: str, storage: StorageSettings, tenant: StoreTenant | None) -> Tier:
    from noetl.results.tiers.objects import (
        ObjectTier,  # loads obstore, which most processes do not need
    )

    return ObjectTier(connect_object_store(url, storage), url, tenant)


def connect_object_store(url: str, storage: StorageSettings) -> "ObjectStore":
    """The object store of a URL, with the endpoint and the keys of the settings."""
    from noetl.results.tiers.objects import open_object_store

    endpoint = storage.storage_endpoint
    is_plain_http = endpoint is not None and not endpoint.startswith("https://")
    if is_plain_http and not storage.storage_allow_http:
        raise InvalidInput(
            f"NOETL_STORAGE_ENDPOINT is {endpoint}, without TLS",
            hint="use https://, or set NOETL_STORAGE_ALLOW_HTTP=true where nobody listens in",
        )
    key, secret = storage.storage_access_key_id, storage.storage_secret_access_key
    options = {
        "endpoint": endpoint,
        "region": storage.storage_region,
        "access_key_id": key and key.reveal(),
        "secret_access_key": secret and secret.reveal(),
    }
    set_options = {name: value for name, value in options.items() if value}
    return open_object_store(url, allow_http=storage.storage_allow_http, **set_options)


def directory_from_url(url: str) -> Path:
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost"):
        raise InvalidInput(f"{url} names a host", hint="file:///directory, with three slashes")
    return Path(unquote(parts.path))

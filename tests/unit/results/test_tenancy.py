"""Stores of two tenants in one place: the same address names two payloads."""

import asyncio
from pathlib import Path

import pytest
from obstore.store import MemoryStore

from noetl.model.errors import NotFound
from noetl.model.ids import DEFAULT_TENANT, Tenant
from noetl.model.reference import Reference, make_address
from noetl.results.port import Tier
from noetl.results.staging import StagedPayload
from noetl.results.tenancy import StoreTenant
from noetl.results.tiers.cached import CachedTier
from noetl.results.tiers.file_pool import FilePool, WriteAllowance
from noetl.results.tiers.files import FileTier
from noetl.results.tiers.objects import ObjectTier

ADDRESS = make_address("7", "result", "s", "k")
REFERENCE = Reference(ref_id="1", type="disk", uri=str(ADDRESS))  # type: ignore[arg-type]
TENANTS = (DEFAULT_TENANT, Tenant(2), Tenant(22))


def open_tier(kind: str, folder: Path, objects: MemoryStore, tenant: Tenant) -> Tier:
    of_tenant = StoreTenant(tenant)
    if kind == "files":
        return FileTier(folder / "files", tenant=of_tenant)
    remote = ObjectTier(objects, "memory", of_tenant)
    if kind == "objects":
        return remote
    allowance = WriteAllowance(1e9, lambda: 0.0)
    meta = FilePool(folder / "meta", 1 << 30, allowance)
    return CachedTier(remote, meta, FilePool(folder / "data", 1 << 30, allowance), of_tenant)


async def read(tier: Tier) -> bytes:
    source = await tier.open(REFERENCE)
    try:
        return source.read(0, source.size)
    finally:
        source.close()


@pytest.mark.parametrize("kind", ["files", "objects", "cached"])
def test_tenants_have_places_of_their_own(kind: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        objects = MemoryStore()
        tiers = [open_tier(kind, tmp_path, objects, tenant) for tenant in TENANTS]
        for tenant, tier in zip(TENANTS, tiers, strict=True):
            with pytest.raises(NotFound):
                await read(tier)
            await tier.write(ADDRESS, StagedPayload.from_bytes(f"of {tenant}".encode()))
        for tenant, tier in zip(TENANTS, tiers, strict=True):
            assert await read(tier) == f"of {tenant}".encode()
            assert [each.address async for each in tier.list_objects()] == [ADDRESS]
            assert [each.address async for each in tier.list_objects(ADDRESS.execution_id)] == [
                ADDRESS
            ]
        await tiers[1].delete(ADDRESS)
        with pytest.raises(NotFound):
            await read(tiers[1])
        assert await read(tiers[0]) == b"of 1"

    asyncio.run(scenario())


def test_the_default_tenant_keeps_the_places_it_had() -> None:
    default = StoreTenant()
    assert (default.folders, default.make_cache_key("u")) == ((), "u")
    other = StoreTenant(Tenant(2))
    assert (other.folders, other.make_cache_key("u")) == (("tenants", "2"), "tenants/2/u")

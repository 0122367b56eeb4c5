"""Compiled playbooks by tenant and content hash: a cache over the catalog, so that each is compiled
once."""

from collections.abc import Mapping
from typing import Any

from noetl.caches import LruCache
from noetl.catalog.port import Catalog, CatalogEntry
from noetl.model.errors import NotFound
from noetl.model.ids import DEFAULT_TENANT, ExecutionId, Tenant
from noetl.playbook.children import asks_latest
from noetl.playbook.model import Playbook
from noetl.playbook.plan import Plan, compile_plan
from noetl.playbook.validation import load_registered
from noetl.playbook.workload import WorkloadContext, merge_workload

Version = str | int | None


class Playbooks:
    """Finds playbooks in the catalog and compiles them."""

    def __init__(
        self,
        catalog: Catalog,
        limit: int,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """`env` is what `env.*` in workload defaults reads."""
        self._catalog = catalog
        self._env = env or {}
        self._plans: LruCache[tuple[Tenant, str], Plan] = LruCache(limit)

    async def get_plan(self, content: str, tenant: Tenant) -> Plan:
        """The compiled playbook. Raises `NotFound` or `PlaybookInvalid` if it cannot run."""
        plan = self._plans.get((tenant, content))
        if plan is None:
            entry = await self.get_catalog_entry(content, tenant)
            plan = compile_plan(load_catalog_entry(entry), content)
            self._plans.put((tenant, content), plan)
        return plan

    async def make_workload(
        self,
        entry: CatalogEntry,
        tenant: Tenant,
        execution_id: ExecutionId,
        payload: dict[str, Any] | None,
    ) -> dict[str, Any]:
        """The payload merged over the defaults of this version.

        Raises `InvalidInput` if a default cannot be rendered.
        """
        beginning = WorkloadContext(execution_id, entry.path, entry.version, self._env)
        plan = await self.get_plan(entry.hash, tenant)
        return merge_workload(plan.playbook, payload, beginning)

    async def get_catalog_entry(self, content: str, tenant: Tenant) -> CatalogEntry:
        """The catalog entry with this content hash, for the playbook that an execution is pinned to."""
        entry = await self._catalog.find_by_hash(content, tenant)
        if entry is None:
            raise NotFound(
                f"no playbook has the hash {content}",
                hint="register it again: executions are pinned to it",
            )
        return entry

    async def find_catalog_entry(
        self, path: str, version: Version = None, tenant: Tenant = DEFAULT_TENANT
    ) -> CatalogEntry:
        """The catalog entry of a path and version, or of its latest version."""
        hint = "noetl catalog list shows what there is; noetl catalog register FILE adds one"
        entry = None
        wanted = str(version)
        if not asks_latest(version) and wanted.isdigit():
            entry = await self._catalog.find(path, int(wanted), tenant)
        if entry is not None:
            return entry
        latest = await self._catalog.find(path, None, tenant)
        if latest is None:
            raise NotFound(f"no playbook {path!r}", hint=hint)
        if asks_latest(version):
            return latest
        raise NotFound(
            f"no playbook {path!r} version {wanted}",
            hint=f"its latest version is {latest.version}",
        )


def load_catalog_entry(entry: CatalogEntry) -> Playbook:
    return load_registered(entry.text, file=entry.path)

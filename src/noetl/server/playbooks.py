"""Playbooks ready to run, by content hash: read from the catalog, validated and compiled once."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from noetl.catalog.port import Catalog, CatalogEntry
from noetl.model.errors import NotFound
from noetl.model.ids import DEFAULT_TENANT, ExecutionId, Tenant
from noetl.playbook.children import asks_latest
from noetl.playbook.model import Playbook
from noetl.playbook.plan import Plan, compile_plan
from noetl.playbook.validation import load_registered
from noetl.playbook.workload import Beginning, merge

Version = str | int | None


class Playbooks:
    def __init__(self, catalog: Catalog, limit: int, env: Mapping[str, str] | None = None) -> None:
        """`env`: what `env.*` of workload defaults reads."""
        self._catalog = catalog
        self._limit = limit
        self._env = env or {}
        self._plans: OrderedDict[str, Plan] = OrderedDict()

    async def plan(self, content: str) -> Plan:
        """NotFound or PlaybookInvalid when it cannot run."""
        plan = self._plans.get(content)
        if plan is None:
            plan = compile_plan(read(await self.text(content)), content)
            self._plans[content] = plan
            while len(self._plans) > self._limit:
                self._plans.popitem(last=False)
        self._plans.move_to_end(content)
        return plan

    async def workload(
        self, entry: CatalogEntry, execution_id: ExecutionId, payload: dict[str, Any] | None
    ) -> dict[str, Any]:
        """The input of an execution of this version, with its defaults. InvalidInput when one cannot be rendered."""
        beginning = Beginning(execution_id, entry.path, entry.version, self._env)
        return merge((await self.plan(entry.hash)).playbook, payload, beginning)

    async def text(self, content: str, tenant: Tenant | None = None) -> CatalogEntry:
        """Without a tenant: of whatever an execution is pinned to."""
        entry = await self._catalog.by_hash(content, tenant)
        if entry is None:
            raise NotFound(
                f"no playbook has the hash {content}",
                hint="register it again: executions are pinned to it",
            )
        return entry

    async def find(
        self, path: str, version: Version = None, tenant: Tenant = DEFAULT_TENANT
    ) -> CatalogEntry:
        """By path and version."""
        wanted = None if asks_latest(version) else str(version)
        number = int(wanted) if wanted is not None and wanted.isdigit() else None
        entry = (
            None
            if wanted is not None and number is None
            else await self._catalog.find(path, number, tenant)
        )
        if entry is None:
            raise NotFound(
                f"no playbook {path!r}" + (f" version {wanted}" if wanted else ""),
                hint="noetl catalog list shows what there is; noetl catalog register FILE adds one",
            )
        return entry


def read(entry: CatalogEntry) -> Playbook:
    return load_registered(entry.text, file=entry.path)

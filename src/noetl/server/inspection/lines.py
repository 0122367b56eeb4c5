"""Lines of playbooks, by tenant and content hash: a cache over the catalog."""

import asyncio

from noetl.caches import LruCache
from noetl.model.errors import NotFound
from noetl.model.ids import Tenant
from noetl.playbook.lines import StepLines, find_step_lines
from noetl.server.dispatch.playbooks import Playbooks

MAX_CACHED_PLAYBOOKS = 64


class PlaybookLines:
    def __init__(self, playbooks: Playbooks) -> None:
        self._playbooks = playbooks
        self._cached: LruCache[tuple[Tenant, str], dict[str, StepLines]] = LruCache(
            MAX_CACHED_PLAYBOOKS
        )

    async def get_lines(self, tenant: Tenant, content: str) -> dict[str, StepLines]:
        """The lines of a playbook by step. Empty if its text is not there or cannot be read."""
        lines = self._cached.get((tenant, content))
        if lines is None:
            try:
                entry = await self._playbooks.get_catalog_entry(content, tenant)
            except NotFound:
                return {}
            lines = await asyncio.to_thread(find_step_lines, entry.text)
            self._cached.put((tenant, content), lines)
        return lines

    async def find_line(
        self,
        tenant: Tenant,
        content: str,
        step: str | None,
        task: str | None = None,
        code_line: int | None = None,
    ) -> int | None:
        """The line of the code that failed, if it is known; else that of its step."""
        lines = (await self.get_lines(tenant, content)).get(step or "")
        if lines is None:
            return None
        found = None if code_line is None else lines.find_code_line(task, code_line)
        return found or lines.line

"""Renders templates so that people can try them out.

It uses the sandboxed evaluator with the server's limits. The values come from the caller, or from
the workload and variables of an execution. It never opens a payload.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from noetl.engine.expressions import DistantValue
from noetl.log.events.port import EventLog
from noetl.model.errors import InvalidInput, NotFound
from noetl.model.identity import Identity, Permission, needs
from noetl.model.ids import ExecutionId
from noetl.playbook.assignments import replace_links
from noetl.server.executions.service import ExecutionService
from noetl.template.errors import NeedsData
from noetl.template.limits import SERVER_LIMITS
from noetl.template.rendering import Renderer


class RenderService:
    def __init__(self, log: EventLog, executions: ExecutionService) -> None:
        self._log = log
        self._executions = executions

    @needs(Permission.WRITE)
    async def render(
        self,
        identity: Identity,
        template: Any,
        context: Mapping[str, Any],
        execution_id: ExecutionId | None = None,
    ) -> Any:
        """Render every text in `template`. `context` overrides the names of the execution."""
        names: dict[str, Any] = {}
        if execution_id is not None:
            names = await self._read_names(identity, execution_id)
        scope = {**names, **context}
        try:
            return await asyncio.to_thread(Renderer(SERVER_LIMITS).render_value, template, scope)
        except NeedsData as error:
            raise InvalidInput(
                f"the template needs the data of {error.request}",
                hint="only a worker opens data: run a step with it",
            ) from error

    async def _read_names(self, identity: Identity, execution_id: ExecutionId) -> dict[str, Any]:
        state = await self._executions.get_projected_state(identity, execution_id)
        pinned = await self._log.read_pinned(execution_id)
        if pinned is None:
            raise NotFound(f"no execution {execution_id}")
        variables = {} if state is None else state.ctx
        ctx = replace_links(variables, DistantValue)
        return {
            **pinned.workload,
            "workload": pinned.workload,
            "ctx": ctx,
            "vars": ctx,
            "execution_id": execution_id,
        }

"""One change of many executions: each by itself, with an outcome of its own."""

import asyncio
from typing import Literal

from noetl.model.errors import NoetlError
from noetl.model.identity import Identity, Permission, needs
from noetl.model.ids import ExecutionId
from noetl.server.dispatch.requests import RepeatWish
from noetl.server.executions.request_outcomes import make_request_key
from noetl.server.executions.service import ExecutionService
from noetl.server.executions.views import AskedView, BulkView, OutcomeView

BulkChange = Literal["cancel", "retry", "pause", "resume"]
MAX_CONCURRENT_CHANGES = 16
NO_EFFECT_CODE = "NO_EFFECT"


class BulkService:
    def __init__(self, executions: ExecutionService) -> None:
        self._executions = executions

    @needs(Permission.OPERATE)
    async def change(
        self,
        identity: Identity,
        do: BulkChange,
        ids: list[str],
        key: str | None = None,
    ) -> BulkView:
        """Do this to every execution. An execution for which it fails does not stop the others.

        All requests have the same key, which counts per execution: a repeat has no further effect.
        """
        request = make_request_key(key)
        places = asyncio.Semaphore(MAX_CONCURRENT_CHANGES)

        async def change_one(execution_id: ExecutionId) -> OutcomeView:
            async with places:
                return await self._change_one(identity, do, execution_id, request)

        chosen = [ExecutionId(each) for each in dict.fromkeys(ids)]
        return BulkView(await asyncio.gather(*map(change_one, chosen)))

    async def _change_one(
        self,
        identity: Identity,
        do: BulkChange,
        execution_id: ExecutionId,
        request: str,
    ) -> OutcomeView:
        try:
            if do == "retry":
                wish = RepeatWish("retry")
                started = await self._executions.repeat(identity, execution_id, wish, request)
                return OutcomeView(execution_id, True, started=started.execution_id)
            asked = await self._ask(identity, do, execution_id, request)
        except NoetlError as error:
            return OutcomeView(execution_id, False, code=error.code, message=str(error))
        if asked.status == "refused":
            return OutcomeView(execution_id, False, code=NO_EFFECT_CODE, message=asked.reason)
        return OutcomeView(execution_id, True)

    async def _ask(
        self,
        identity: Identity,
        do: Literal["cancel", "pause", "resume"],
        execution_id: ExecutionId,
        request: str,
    ) -> AskedView:
        match do:
            case "cancel":
                return await self._executions.cancel(identity, execution_id, request)
            case "pause":
                return await self._executions.pause(identity, execution_id, request)
            case "resume":
                return await self._executions.resume(identity, execution_id, request)

"""Variables of an execution (`ctx`)."""

from typing import Any

from pydantic import Field

from noetl.model.errors import NotFound
from noetl.model.ids import ExecutionId
from noetl.server.api.bodies import Id, MinSeq, View, router
from noetl.server.api.depends import Has, Who

routes = router("vars")


class VarsView(View):
    execution_id: str
    vars: dict[str, Any] = Field(examples=[{"total": 3}], description="a large value is {'$reference': uri}")


class VarView(View):
    execution_id: str
    name: str
    value: Any


@routes.get("/api/vars/{execution_id}")
async def get_vars(execution_id: Id, has: Has, who: Who, min_seq: MinSeq = None) -> VarsView:
    """All of them, as they are now or were at the end."""
    state = await has.executions.state(who, ExecutionId(execution_id), min_seq)
    return VarsView(execution_id=execution_id, vars={} if state is None else state.ctx)


@routes.get("/api/vars/{execution_id}/{name}")
async def get_var(execution_id: Id, name: str, has: Has, who: Who, min_seq: MinSeq = None) -> VarView:
    """One of them."""
    state = await has.executions.state(who, ExecutionId(execution_id), min_seq)
    if state is None or name not in state.ctx:
        raise NotFound(f"execution {execution_id} has no variable {name!r}", hint="GET /api/vars/{execution_id}")
    return VarView(execution_id=execution_id, name=name, value=state.ctx[name])

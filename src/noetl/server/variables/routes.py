"""Routes for the variables of an execution (`ctx`)."""

from collections.abc import AsyncGenerator

import msgspec
from starlette.responses import StreamingResponse

from noetl.model.ids import ExecutionId
from noetl.model.previews import Download
from noetl.server.http.depends import Has, Who
from noetl.server.http.parameters import Id, MinSeq
from noetl.server.http.routing import Routes
from noetl.server.variables.views import VarsView, VarView

routes = Routes("vars")


@routes.get("/api/vars/{execution_id}")
async def get_vars(
    execution_id: Id,
    has: Has,
    who: Who,
    min_seq: MinSeq = None,
) -> VarsView:
    """All variables of the execution, as they are now or were at its end."""
    variables = await has.variables.read_all(who, ExecutionId(execution_id), min_seq)
    return VarsView(execution_id=execution_id, vars=variables)


@routes.get("/api/vars/{execution_id}/{name}")
async def get_var(
    execution_id: Id, name: str, has: Has, who: Who, min_seq: MinSeq = None
) -> VarView | StreamingResponse:
    """One variable with its whole value, of any size."""
    value = await has.variables.read_one(who, ExecutionId(execution_id), name, min_seq)
    if isinstance(value, Download):
        return StreamingResponse(
            _encode_var(execution_id, name, value), media_type="application/json"
        )
    return VarView(execution_id=execution_id, name=name, value=value)


async def _encode_var(
    execution_id: str,
    name: str,
    value: Download,
) -> AsyncGenerator[bytes, None]:
    """A `VarView` as JSON. The value is sent while it is read."""
    head = msgspec.json.encode({"execution_id": execution_id, "name": name})
    yield head[:-1] + b',"value":'
    async for part in value.parts(0, None):
        yield part
    yield b"}"

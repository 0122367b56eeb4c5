"""The route to try out templates."""

from typing import Any, Literal

from pydantic import Field

from noetl.model.ids import ExecutionId
from noetl.server.http.bodies import RequestBody, View, make_router
from noetl.server.http.depends import Has, Who

routes = make_router("templates")


class RenderBody(RequestBody):
    template: Any = Field(examples=[{"sql": "select * from t limit {{ workload.n }}"}])
    context: dict[str, Any] = Field(default={}, examples=[{"workload": {"n": 3}}])
    execution_id: str | None = Field(default=None, pattern=r"^[1-9][0-9]{0,18}$")
    strict: Literal[True] = Field(
        default=True, description="a name that is not there is an error, always"
    )


class RenderedView(View):
    result: Any


@routes.post("/api/context/render")
async def render_template(body: RenderBody, has: Has, who: Who) -> RenderedView:
    """Render every text in `template` with `context` and the workload and ctx of an execution.
    Results of steps are never opened."""
    execution_id = None if body.execution_id is None else ExecutionId(body.execution_id)
    result = await has.rendering.render(who, body.template, body.context, execution_id)
    return RenderedView(result=result)

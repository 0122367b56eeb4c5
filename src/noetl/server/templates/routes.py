"""The route to try out templates."""

from typing import Annotated, Any

from msgspec import Meta

from noetl.model.ids import ExecutionId
from noetl.server.http.depends import Has, Who
from noetl.server.http.parameters import EXECUTION_ID_PATTERN
from noetl.server.http.routing import Routes
from noetl.server.http.structs import RequestBody, describe
from noetl.server.http.validation import InvalidRequest, RequestFinding
from noetl.server.templates.views import RenderedView

routes = Routes("templates")


class RenderBody(RequestBody, frozen=True):
    template: Annotated[Any, describe(example={"sql": "select * from t limit {{ workload.n }}"})]
    context: Annotated[dict[str, Any], describe(example={"workload": {"n": 3}})] = {}
    execution_id: Annotated[str, Meta(pattern=EXECUTION_ID_PATTERN)] | None = None
    strict: Annotated[
        bool,
        describe("a name that is not there is an error, always", extra_json_schema={"const": True}),
    ] = True

    def __post_init__(self) -> None:
        if not self.strict:
            place = ("body", "strict")
            raise InvalidRequest(
                RequestFinding("literal_error", place, "`strict` can only be true")
            )


@routes.post("/api/context/render")
async def render_template(body: RenderBody, has: Has, who: Who) -> RenderedView:
    """Render every text in `template` with `context` and the workload and ctx of an execution.
    Results of steps are never opened."""
    execution_id = None if body.execution_id is None else ExecutionId(body.execution_id)
    result = await has.rendering.render(who, body.template, body.context, execution_id)
    return RenderedView(result=result)

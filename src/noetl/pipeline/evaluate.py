"""`evaluate` and `plan`: what the server could not compute without opening data."""

from msgspec import convert

from noetl.model import events as e
from noetl.model.clock import iso
from noetl.model.envelope import Envelope, Selected
from noetl.pipeline.collections import planned
from noetl.pipeline.context import Context
from noetl.pipeline.data import Stored
from noetl.pipeline.environment import Given
from noetl.pipeline.names import Names
from noetl.pipeline.rendering import Rendering
from noetl.pipeline.selecting import selected
from noetl.playbook.scopes import ended_loop, handled_event


async def evaluate(context: Context) -> e.ExpressionEvaluated:
    command = context.command
    rendering = site_rendering(context)
    sources = context.plan.steps[command.step].sites[command.site or ""]
    found = {f"{number:06}": await selected(rendering, source) for number, source in enumerate(sources)}
    kept = await context.persist.selections("values", found)
    return context.evaluated(values=tuple(convert(kept[name], Selected) for name in sorted(kept)))


async def plan_loop(context: Context) -> e.ExpressionEvaluated:
    loop = context.step.loop
    return context.evaluated(
        plan=await planned(context, site_rendering(context), loop.in_ if loop is not None else None)
    )


def site_rendering(context: Context) -> Rendering:
    """The scope of a server-side expression: as a step's router sees it once its own call has ended."""
    command = context.command
    now = iso(context.env.clock.now())
    names = Names(context.shared.issued, context.writes(), None, now, journaled=False)
    event = command.scope.event
    own = _own(context)
    scope = names.scope(own, command.step) | {"event": handled_event(event, command.step, now)}
    if own is not None:
        scope[command.step] = own  # also when it failed
    for name in ("_prev", "results"):  # of a pipeline, which does not run here
        del scope[name]
    if context.step.loop is not None and command.scope.own is not None:
        scope["loop"] = ended_loop(event, command.scope.own)
    functions = Given(f"{command.command_id}:{command.site}", context.env.clock)
    where = f"step {command.step}, {command.site}"
    return Rendering(lambda: {**scope, **command.site_args}, context.payloads, functions, where)


def _own(context: Context) -> Stored | None:
    own: Envelope | None = context.command.scope.own
    return None if own is None else Stored(own, context.payloads)

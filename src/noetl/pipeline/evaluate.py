"""`evaluate` and `plan`: what the server could not compute without opening data."""

from typing import Any

from msgspec import convert

from noetl.model import events as e
from noetl.model.clock import iso
from noetl.model.envelope import NOT_WRITTEN, Envelope, Selected
from noetl.model.ids import gathered_id
from noetl.pipeline.collections import planned
from noetl.pipeline.context import Context
from noetl.pipeline.data import LazyResult, ResultReader, is_manifest, value_of
from noetl.pipeline.environment import SeededFunctions
from noetl.pipeline.names import TemplateScope
from noetl.pipeline.rendering import TaskRendering
from noetl.pipeline.selecting import MAX_ERROR_CHARACTERS, judged, selected
from noetl.playbook import reducers
from noetl.playbook.assignments import found_at, full_name, is_state, root_of
from noetl.playbook.expressions import FailedError
from noetl.playbook.plan import ADMIT, REDUCE, WHEN
from noetl.playbook.scopes import ended_loop, handled_event


async def evaluate(context: Context) -> e.ExpressionEvaluated:
    command = context.command
    if command.site == REDUCE:
        return await join_reductions(context)
    rendering = site_rendering(context)
    site = context.plan.steps[command.step].site[command.site or ""]
    evaluate_one = judged if command.site in (ADMIT, WHEN) else selected
    found = {
        f"{number:06}": await evaluate_one(rendering, source)
        for number, source in enumerate(site.sources)
    }
    state = {
        f"{number:06}" for number, key in enumerate(site.keys) if is_state(key.removeprefix("set:"))
    }
    kept = await context.persist.selections("values", found, state)
    return context.evaluated(values=tuple(convert(kept[name], Selected) for name in sorted(kept)))


async def join_reductions(context: Context) -> e.ExpressionEvaluated:
    """The reductions of a loop, folded in item order onto what the variables are now."""
    command, loop = context.command, context.step.loop
    reduce = (
        {} if loop is None else {name: str(reducer) for name, reducer in loop.spec.reduce.items()}
    )
    entries = [(low, partial) for low, partial in command.site_args["segments"]]
    entries += await _gathered(context.payloads, gathered_id(command.activation))
    ordered = [partial for _, partial in sorted(entries, key=lambda entry: entry[0])]
    roots = {
        "ctx": await context.payloads.unlinked(command.scope.ctx),
        "state": command.scope.state or {},
    }
    found = {name: _joined(name, reduce[name], ordered, roots) for name in sorted(reduce)}
    gathered = {name for name, reducer in reduce.items() if reducer in reducers.GATHERING}
    kept = await context.persist.selections(
        "values", found, set(filter(is_state, reduce)), gathered
    )
    return context.evaluated(values=tuple(convert(kept[name], Selected) for name in sorted(kept)))


async def _gathered(payloads: ResultReader, manifest: str) -> list[tuple[int, dict[str, Any]]]:
    """What was gathered, each with the index of its first item. A retried loop begins with what the run before it gathered."""
    found: list[tuple[int, dict[str, Any]]] = []
    for part in await payloads.parts(manifest):
        if is_manifest(part.reference):
            before = await _gathered(payloads, part.reference.ref_id)
            found += [
                (part.first, partial) for _, partial in sorted(before, key=lambda entry: entry[0])
            ]
        else:
            found.append((part.first, await payloads.resolve(part.reference)))
    return found


def _joined(
    name: str, reducer: str, partials: list[dict[str, Any]], roots: dict[str, Any]
) -> Selected:
    folded: Any = reducers.MISSING
    root, path = root_of(full_name(name))
    current = found_at(roots[root], path)
    try:
        for partial in partials:
            folded = reducers.combine(reducer, folded, partial.get(name, reducers.MISSING))
        if folded is reducers.MISSING:
            return NOT_WRITTEN
        return Selected(value=reducers.onto(reducer, current, folded))
    except FailedError as error:
        return Selected(error=f"{name}: {error}"[:MAX_ERROR_CHARACTERS])


async def plan_loop(context: Context) -> e.ExpressionEvaluated:
    loop = context.step.loop
    return context.evaluated(
        plan=await planned(context, site_rendering(context), loop.in_ if loop is not None else None)
    )


def site_rendering(context: Context) -> TaskRendering:
    """The scope of a server-side expression: as a step's router sees it once its own call has ended."""
    command = context.command
    now = iso(context.env.clock.now())
    names = TemplateScope(context.shared.issued, context.writes(), None, now, journaled=False)
    event = command.scope.event
    own = _own(context)
    scope = names.scope(own, command.step) | {"event": handled_event(event, command.step, now)}
    if own is not None:
        scope[command.step] = value_of(
            own, command.step, f"step {command.step}"
        )  # also when it failed
    for name in ("_prev", "results"):  # of a pipeline, which does not run here
        del scope[name]
    if context.step.loop is not None and command.scope.own is not None:
        scope["loop"] = ended_loop(event, command.scope.own)
    functions = SeededFunctions(f"{command.command_id}:{command.site}", context.env.clock)
    where = f"step {command.step}, {command.site}"
    return TaskRendering(lambda: {**scope, **command.site_args}, context.payloads, functions, where)


def _own(context: Context) -> LazyResult | None:
    own: Envelope | None = context.command.scope.own
    return None if own is None else LazyResult(own, context.payloads)

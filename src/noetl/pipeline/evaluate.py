"""`evaluate` and `plan`: expressions that the server cannot compute without opening data."""

from operator import itemgetter
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
    selected_values: dict[str, Selected] = {}
    for number, source in enumerate(site.sources):
        selected_values[f"{number:06}"] = await evaluate_one(rendering, source)
    state: set[str] = set()
    for number, key in enumerate(site.keys):
        if is_state(key.removeprefix("set:")):
            state.add(f"{number:06}")
    selections = await context.persist.selections("values", selected_values, state)
    return context.evaluated(values=_in_order(selections))


def _in_order(selections: dict[str, Any]) -> tuple[Selected, ...]:
    return tuple(convert(selections[name], Selected) for name in sorted(selections))


async def join_reductions(context: Context) -> e.ExpressionEvaluated:
    """The reductions of a loop, folded in the order of its items onto the current variables."""
    command, loop = context.command, context.step.loop
    reduce: dict[str, str] = {}
    if loop is not None:
        reduce = {name: str(reducer) for name, reducer in loop.spec.reduce.items()}
    entries = [(low, partial) for low, partial in command.site_args["segments"]]
    entries += await _gathered(context.payloads, gathered_id(command.activation))
    entries.sort(key=itemgetter(0))
    ordered = [partial for _, partial in entries]
    roots = {
        "ctx": await context.payloads.unlinked(command.scope.ctx),
        "state": command.scope.state or {},
    }
    selected_values = {name: _joined(name, reduce[name], ordered, roots) for name in sorted(reduce)}
    state = {name for name in reduce if is_state(name)}
    gathered = {name for name, reducer in reduce.items() if reducer in reducers.GATHERING}
    selections = await context.persist.selections("values", selected_values, state, gathered)
    return context.evaluated(values=_in_order(selections))


async def _gathered(payloads: ResultReader, manifest: str) -> list[tuple[int, dict[str, Any]]]:
    """The stored reductions, each with the index of its first item.

    A retried loop begins with the reductions of the earlier run.
    """
    partials: list[tuple[int, dict[str, Any]]] = []
    for part in await payloads.parts(manifest):
        if is_manifest(part.reference):
            earlier = await _gathered(payloads, part.reference.ref_id)
            earlier.sort(key=itemgetter(0))
            partials += [(part.first, partial) for _, partial in earlier]
        else:
            partials.append((part.first, await payloads.resolve(part.reference)))
    return partials


def _joined(
    name: str,
    reducer: str,
    partials: list[dict[str, Any]],
    roots: dict[str, Any],
) -> Selected:
    """The partial values of one reduction, folded onto the current value of its variable."""
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
    template = None
    if loop is not None:
        template = loop.in_
    collection = await planned(context, site_rendering(context), template)
    return context.evaluated(plan=collection)


def site_rendering(context: Context) -> TaskRendering:
    """The scope of a server-side expression: what the step's arcs see after the step's call."""
    command = context.command
    now = iso(context.env.clock.now())
    names = TemplateScope(context.shared.issued, context.writes(), None, now, journaled=False)
    event = command.scope.event
    own = _own(context)
    scope = names.scope(own, command.step)
    scope["event"] = handled_event(event, command.step, now)
    if own is not None:  # also if the step failed
        scope[command.step] = value_of(own, command.step, f"step {command.step}")
    for name in ("_prev", "results"):  # names of a pipeline, and none runs here
        del scope[name]
    if context.step.loop is not None and command.scope.own is not None:
        scope["loop"] = ended_loop(event, command.scope.own)
    functions = SeededFunctions(f"{command.command_id}:{command.site}", context.env.clock)
    where = f"step {command.step}, {command.site}"
    return TaskRendering(lambda: {**scope, **command.site_args}, context.payloads, functions, where)


def _own(context: Context) -> LazyResult | None:
    """The result of the command's own step."""
    envelope: Envelope | None = context.command.scope.own
    if envelope is None:
        return None
    return LazyResult(envelope, context.payloads)

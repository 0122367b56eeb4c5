"""`evaluate` and `plan`: expressions that the server cannot compute without opening data."""

from operator import itemgetter
from typing import Any

from msgspec import convert

from noetl.model import events as e
from noetl.model.clock import format_iso
from noetl.model.envelope import NOT_WRITTEN, Envelope, Selected
from noetl.model.ids import gathered_id
from noetl.pipeline.context import CommandContext
from noetl.pipeline.environment import SeededFunctions
from noetl.pipeline.loop.collections import plan_collection
from noetl.pipeline.scope.lazy_results import LazyResult, value_or_undefined
from noetl.pipeline.scope.names import TemplateScope
from noetl.pipeline.scope.rendering import TaskRendering
from noetl.pipeline.scope.results import ResultReader, is_manifest
from noetl.pipeline.scope.selecting import cut_error, judge_guard, select_value
from noetl.playbook import reducers
from noetl.playbook.assignments import full_name, get_at_path, is_state, split_full_name
from noetl.playbook.plan import ADMIT, REDUCE, WHEN
from noetl.template.errors import FailedError
from noetl.template.limits import WORKER_LIMITS
from noetl.template.rendering import Renderer
from noetl.template.scopes import build_ended_loop, build_handled_event


async def evaluate_site(context: CommandContext) -> e.ExpressionEvaluated:
    command = context.command
    if command.site == REDUCE:
        return await join_reductions(context)
    rendering = make_site_rendering(context)
    site = context.plan.steps[command.step].site[command.site or ""]
    evaluate_one = judge_guard if command.site in (ADMIT, WHEN) else select_value
    selected_values: dict[str, Selected] = {}
    for number, source in enumerate(site.sources):
        selected_values[f"{number:06}"] = await evaluate_one(rendering, source)
    state: set[str] = set()
    for number, key in enumerate(site.keys):
        if is_state(key.removeprefix("set:")):
            state.add(f"{number:06}")
    selections = await context.persist.carry_selections("values", selected_values, state)
    return context.evaluated_event(values=_sort_selected(selections))


def _sort_selected(selections: dict[str, Any]) -> tuple[Selected, ...]:
    return tuple(convert(selections[name], Selected) for name in sorted(selections))


async def join_reductions(context: CommandContext) -> e.ExpressionEvaluated:
    """The reductions of a loop, folded in the order of its items onto the current variables."""
    command, loop = context.command, context.step.loop
    reduce: dict[str, str] = {}
    if loop is not None:
        reduce = {name: str(reducer) for name, reducer in loop.spec.reduce.items()}
    entries = [(low, partial) for low, partial in command.site_args["segments"]]
    entries += await _read_gathered(context.payloads, gathered_id(command.activation))
    entries.sort(key=itemgetter(0))
    ordered = [partial for _, partial in entries]
    roots = {
        "ctx": await context.payloads.resolve_links(command.scope.ctx),
        "state": command.scope.state or {},
    }
    selected_values = {
        name: _join_partials(name, reduce[name], ordered, roots) for name in sorted(reduce)
    }
    state = {name for name in reduce if is_state(name)}
    gathered = {name for name, reducer in reduce.items() if reducer in reducers.REFERENCE_REDUCERS}
    selections = await context.persist.carry_selections("values", selected_values, state, gathered)
    return context.evaluated_event(values=_sort_selected(selections))


async def _read_gathered(payloads: ResultReader, manifest: str) -> list[tuple[int, dict[str, Any]]]:
    """The stored reductions, each with the index of its first item.

    A retried loop begins with the reductions of the earlier run.
    """
    partials: list[tuple[int, dict[str, Any]]] = []
    for part in await payloads.list_parts(manifest):
        if is_manifest(part.reference):
            earlier = await _read_gathered(payloads, part.reference.ref_id)
            earlier.sort(key=itemgetter(0))
            partials += [(part.first, partial) for _, partial in earlier]
        else:
            partials.append((part.first, await payloads.resolve(part.reference)))
    return partials


def _join_partials(
    name: str,
    reducer: str,
    partials: list[dict[str, Any]],
    roots: dict[str, Any],
) -> Selected:
    """The partial values of one reduction, folded onto the current value of its variable."""
    folded: Any = reducers.NOTHING_FOLDED
    root, path = split_full_name(full_name(name))
    current = get_at_path(roots[root], path)
    try:
        for partial in partials:
            folded = reducers.combine_reductions(
                reducer, folded, partial.get(name, reducers.NOTHING_FOLDED)
            )
        if folded is reducers.NOTHING_FOLDED:
            return NOT_WRITTEN
        return Selected(value=reducers.apply_reduction(reducer, current, folded))
    except FailedError as error:
        return Selected(error=cut_error(f"{name}: {error}"))


async def plan_loop(context: CommandContext) -> e.ExpressionEvaluated:
    loop = context.step.loop
    template = None
    if loop is not None:
        template = loop.in_
    collection = await plan_collection(context, make_site_rendering(context), template)
    return context.evaluated_event(plan=collection)


def make_site_rendering(context: CommandContext) -> TaskRendering:
    """The scope of a server-side expression: what the step's arcs see after the step's call."""
    command = context.command
    now = format_iso(context.env.clock.now())
    names = TemplateScope(context.shared.issued, context.make_writes(), None, now, journaled=False)
    event = command.scope.event
    own = _own_result(context)
    scope = names.make_scope(own, command.step)
    scope["event"] = build_handled_event(event, command.step, now)
    if own is not None:  # also if the step failed
        scope[command.step] = value_or_undefined(own, command.step, f"step {command.step}")
    for name in ("_prev", "results"):  # names of a pipeline, and none runs here
        del scope[name]
    if context.step.loop is not None and command.scope.own is not None:
        scope["loop"] = build_ended_loop(event, command.scope.own)
    functions = SeededFunctions(f"{command.command_id}:{command.site}", context.env.clock)
    where = f"step {command.step}, {command.site}"
    renderer = Renderer(WORKER_LIMITS, functions)
    return TaskRendering(lambda: {**scope, **command.site_args}, context.payloads, renderer, where)


def _own_result(context: CommandContext) -> LazyResult | None:
    """The result of the command's own step."""
    envelope: Envelope | None = context.command.scope.own
    if envelope is None:
        return None
    return LazyResult(envelope, context.payloads)

"""`execute` takes one command and returns the event that reports it.

It dispatches every kind of command.
"""

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import Any, assert_never

from msgspec.structs import replace

from noetl.model import events as e
from noetl.model.commands import Command
from noetl.model.envelope import Envelope, failed
from noetl.model.errors import Failure
from noetl.model.reference import ParentRef
from noetl.pipeline.chunk import run_chunk, run_frame
from noetl.pipeline.context import Context
from noetl.pipeline.data import LazyResult, value_of
from noetl.pipeline.environment import Environment, Journaling, OutgoingEvent, SeededFunctions
from noetl.pipeline.evaluate import evaluate, plan_loop
from noetl.pipeline.failures import Failing, bounded
from noetl.pipeline.names import TemplateScope
from noetl.pipeline.persist import with_context
from noetl.pipeline.rendering import TaskRendering
from noetl.pipeline.run import Ended, Pipeline, PipelinePause
from noetl.pipeline.selecting import all_selected
from noetl.pipeline.spread import on_spark, run_on_spark
from noetl.playbook.model import SinkTask
from noetl.playbook.plan import Plan


async def execute(
    env: Environment,
    plan: Plan,
    command: Command,
    journal: Journaling,
    *,
    claimed_at: int = 0,
    launch: int = 1,
) -> OutgoingEvent:
    """Run the command and return its report, with the references it brings.

    `launch` counts how often this worker has started this attempt.
    """
    context = Context.make(env, plan, command, journal, claimed_at, launch)
    for kind in filter(env.registry.lacks, _kinds(context)):
        await env.registry.load(kind)
    try:
        if command.timeout is None:
            event = await _by_kind(context)
        else:
            event = await _in_time(context, command.timeout / 1_000_000)
    except Failing as failing:
        event = context.failed(failed(bounded(failing.failure)))
    finally:
        context.payloads.forget()
    return env.clean(OutgoingEvent(event, context.persist.refs()))


def _kinds(context: Context) -> Iterator[str]:
    """The kinds of tools that the command may need."""
    step = context.step
    if on_spark(step) and context.command.kind == "chunk":
        yield "spark"
        return
    for task in context.shared.tasks:
        yield task.kind
        if isinstance(task, SinkTask):
            yield task.target.kind
        if task.spec.paginate is not None and task.spec.paginate.sink is not None:
            yield from ("sink", task.spec.paginate.sink.target.kind)
    if step.loop is not None and step.loop.cursor is not None:
        yield step.loop.cursor.kind


async def _in_time(context: Context, limit: float) -> e.Reported:
    try:
        async with asyncio.timeout(limit) as timer:
            return await _by_kind(context)
    except TimeoutError:
        if not timer.expired():
            raise
        message = f"step {context.command.step} did not end within {limit:g} s"
        return context.failed(failed(Failure(code="TIMEOUT", kind="timeout", message=message)))


async def _by_kind(context: Context) -> e.Reported:
    match context.command.kind:
        case "run":
            return await _run(context)
        case "chunk" if on_spark(context.step):
            return await run_on_spark(context)
        case "chunk":
            return await run_chunk(context)
        case "frame":
            return await run_frame(context)
        case "evaluate":
            return await evaluate(context)
        case "plan":
            return await plan_loop(context)
        case never:
            assert_never(never)


async def _run(context: Context) -> e.Reported:
    pipeline = context.pipeline(context.writes(), journal=context.journal)
    ended = await pipeline.run()
    if isinstance(ended, PipelinePause):
        return context.parked(ended)
    envelope = await _final(context, pipeline, ended)
    assigned = await pipeline.assigned()
    if envelope.error is not None:
        return context.failed(envelope, set=assigned)
    return context.completed(
        envelope,
        set=assigned,
        sinks=ended.sinks,
        recovered=ended.recovered,
    )


async def _final(
    context: Context,
    pipeline: Pipeline,
    ended: Ended,
) -> Envelope:
    """The envelope of the step: its last good value or its failure, with the selections."""
    base = ended.value.envelope
    if ended.failure is not None:
        base = Envelope(
            status="error",
            error=ended.failure,
            context=ended.facts,
            parent_ref=_parent(base),
            meta=ended.meta,
        )
    try:
        return await _with_selections(context, pipeline, base)
    except Failing as failing:  # the envelope is too large, or the store is unavailable
        envelope = failed(bounded(failing.failure))
        return replace(envelope, parent_ref=base.parent_ref, meta=base.meta)


def _parent(envelope: Envelope) -> ParentRef | None:
    if envelope.reference is None or envelope.reference.ref_id is None:
        return None
    return ParentRef(envelope.reference.ref_id)


async def _with_selections(
    context: Context,
    pipeline: Pipeline,
    base: Envelope,
) -> Envelope:
    """The envelope with the values that the server needs for arcs, `set` and loop headers."""
    plan = context.plan.steps[context.command.step]
    shown = base
    results = await _results(context, pipeline)
    if results:
        shown = replace(base, context={**base.context, **results})
    if plan.selections:
        rendering = final_rendering(context, pipeline.names, LazyResult(shown, context.payloads))
        selected_values = await all_selected(rendering, plan.selections)
        selections = await context.persist.selections("selections", selected_values)
        shown = replace(shown, context=with_context(shown, selections, {}))
    return context.persist.checked(shown)


async def _results(context: Context, pipeline: Pipeline) -> dict[str, Any]:
    envelopes: dict[str, Envelope] = {}
    for task, stored in pipeline.names.tasks.items():
        if stored.envelope.ok:
            envelopes[task] = stored.envelope
    return await context.persist.results("results", envelopes)


def final_rendering(
    context: Context,
    names: TemplateScope,
    value: LazyResult,
) -> TaskRendering:
    """The scope of selections: the step's own name means its result."""
    step = context.command.step
    functions = SeededFunctions(f"{context.command.command_id}:selections", context.env.clock)
    own = value_of(value, step, f"step {step}")
    scope = partial(names.scope, value, step, **{step: own})
    return TaskRendering(scope, context.payloads, functions, f"step {step}")

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
from noetl.model.envelope import Envelope, make_failed_envelope
from noetl.model.errors import Failure
from noetl.model.reference import ParentRef
from noetl.pipeline.context import CommandContext
from noetl.pipeline.environment import Environment, OutgoingEvent, SeededFunctions, SendJournalEntry
from noetl.pipeline.failures import TaskFailed, limit_failure
from noetl.pipeline.loop.chunk import run_chunk, run_frame
from noetl.pipeline.loop.on_spark import run_on_spark, runs_on_spark
from noetl.pipeline.output.result_writer import add_selections
from noetl.pipeline.scope.evaluate import evaluate_site, plan_loop
from noetl.pipeline.scope.lazy_results import LazyResult, value_or_undefined
from noetl.pipeline.scope.names import TemplateScope
from noetl.pipeline.scope.rendering import TaskRendering
from noetl.pipeline.scope.selecting import select_all
from noetl.pipeline.task.run import Pipeline, PipelineEnd, PipelinePause
from noetl.playbook.model import SinkTask
from noetl.playbook.plan import Plan
from noetl.template.limits import WORKER_LIMITS
from noetl.template.rendering import Renderer


async def execute(
    env: Environment,
    plan: Plan,
    command: Command,
    journal: SendJournalEntry,
    *,
    claimed_at: int = 0,
    launch: int = 1,
) -> OutgoingEvent:
    """Run the command and return its report, with the references it brings.

    `launch` counts how often this worker has started this attempt.
    """
    context = CommandContext.for_command(env, plan, command, journal, claimed_at, launch)
    for kind in filter(env.registry.is_unloaded, _needed_tool_kinds(context)):
        await env.registry.load(kind)
    try:
        if command.timeout is None:
            event = await _dispatch_command(context)
        else:
            event = await _run_within_timeout(context, command.timeout / 1_000_000)
    except TaskFailed as failing:
        event = context.failed_event(make_failed_envelope(limit_failure(failing.failure)))
    finally:
        context.payloads.forget()
        # The latest released secrets stay known: what is said after this is redacted too.
        context.payloads.keychain.release()
    return env.redact_event(OutgoingEvent(event, context.persist.take_references()))


def _needed_tool_kinds(context: CommandContext) -> Iterator[str]:
    """The kinds of tools that the command may need."""
    step = context.step
    if runs_on_spark(step) and context.command.kind == "chunk":
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


async def _run_within_timeout(context: CommandContext, limit: float) -> e.Reported:
    try:
        async with asyncio.timeout(limit) as timer:
            return await _dispatch_command(context)
    except TimeoutError:
        if not timer.expired():
            raise
        message = f"step {context.command.step} did not end within {limit:g} s"
        return context.failed_event(
            make_failed_envelope(Failure(code="TIMEOUT", kind="timeout", message=message))
        )


async def _dispatch_command(context: CommandContext) -> e.Reported:
    match context.command.kind:
        case "run":
            return await _run_pipeline(context)
        case "chunk" if runs_on_spark(context.step):
            return await run_on_spark(context)
        case "chunk":
            return await run_chunk(context)
        case "frame":
            return await run_frame(context)
        case "evaluate":
            return await evaluate_site(context)
        case "plan":
            return await plan_loop(context)
        case never:
            assert_never(never)


async def _run_pipeline(context: CommandContext) -> e.Reported:
    pipeline = context.make_pipeline(context.make_writes(), journal=context.journal)
    ended = await pipeline.run()
    if isinstance(ended, PipelinePause):
        return context.parked_event(ended)
    envelope = await _make_step_envelope(context, pipeline, ended)
    assigned = await pipeline.take_assignments()
    if envelope.error is not None:
        return context.failed_event(envelope, set=assigned)
    return context.completed_event(
        envelope,
        set=assigned,
        sinks=ended.sinks,
        recovered=ended.recovered,
    )


async def _make_step_envelope(
    context: CommandContext,
    pipeline: Pipeline,
    ended: PipelineEnd,
) -> Envelope:
    """The envelope of the step: its last good value or its failure, with the selections."""
    base = ended.value.envelope
    if ended.failure is not None:
        base = Envelope(
            status="error",
            error=ended.failure,
            context=ended.facts,
            parent_ref=_parent_reference(base),
            meta=ended.meta,
        )
    try:
        return await _add_selections(context, pipeline, base)
    except TaskFailed as failing:  # the envelope is too large, or the store is unavailable
        envelope = make_failed_envelope(limit_failure(failing.failure))
        return replace(envelope, parent_ref=base.parent_ref, meta=base.meta)


def _parent_reference(envelope: Envelope) -> ParentRef | None:
    if envelope.reference is None or envelope.reference.ref_id is None:
        return None
    return ParentRef(envelope.reference.ref_id)


async def _add_selections(
    context: CommandContext,
    pipeline: Pipeline,
    base: Envelope,
) -> Envelope:
    """The envelope with the values that the server needs for arcs, `set` and loop headers."""
    plan = context.plan.steps[context.command.step]
    shown = base
    results = await _store_task_references(context, pipeline)
    if results:
        shown = replace(base, context={**base.context, **results})
    if plan.selections:
        rendering = make_final_rendering(
            context, pipeline.names, LazyResult(shown, context.payloads)
        )
        selected_values = await select_all(rendering, plan.selections)
        selections = await context.persist.carry_selections("selections", selected_values)
        shown = replace(shown, context=add_selections(shown, selections, {}))
    return context.persist.check_envelope(shown)


async def _store_task_references(context: CommandContext, pipeline: Pipeline) -> dict[str, Any]:
    envelopes: dict[str, Envelope] = {}
    for task, stored in pipeline.names.tasks.items():
        if stored.envelope.ok:
            envelopes[task] = stored.envelope
    return await context.persist.carry_task_references("results", envelopes)


def make_final_rendering(
    context: CommandContext,
    names: TemplateScope,
    value: LazyResult,
) -> TaskRendering:
    """The scope of selections: the step's own name means its result."""
    step = context.command.step
    functions = SeededFunctions(f"{context.command.command_id}:selections", context.env.clock)
    own = value_or_undefined(value, step, f"step {step}")
    scope = partial(names.make_scope, value, step, **{step: own})
    renderer = Renderer(WORKER_LIMITS, functions)
    return TaskRendering(scope, context.payloads, renderer, f"step {step}")

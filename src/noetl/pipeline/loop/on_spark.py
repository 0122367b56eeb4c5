"""Loops on Spark: one command for the whole loop. Its items run in Spark's tasks with this same
code (`spark/tasks/shard.py`).

The work carries what the tasks need: the plan, the command, and the data of other steps that the
templates of the body read. Each item comes back as one row; a failed item is a row like any other.
The report has the counts and names the result. Before it, `loop.shard.done` tells observers that a
part has ended.
"""

import pickle
from collections.abc import AsyncIterator
from functools import reduce
from typing import Any

from msgspec.structs import replace

from noetl.model import events as e
from noetl.model.codec import encode
from noetl.model.commands import Command
from noetl.model.envelope import Envelope, Meta
from noetl.model.errors import Failure
from noetl.model.ids import ExecutionId, derive_id
from noetl.pipeline.context import CommandContext
from noetl.pipeline.environment import OutgoingEvent
from noetl.pipeline.failures import TaskFailed
from noetl.pipeline.loop.chunk import add_counts
from noetl.pipeline.loop.collections import IndexedItem, read_items
from noetl.pipeline.output.provenance import describe_tool, merge_provenance
from noetl.pipeline.scope.evaluate import make_site_rendering
from noetl.pipeline.scope.results import is_rowset
from noetl.playbook.model import SPARK_LOOP_KINDS, Playbook, SinkTask, Step
from noetl.playbook.plan import Plan, StepPlan, UsedNames
from noetl.results.formats.tables import TableOptions
from noetl.tools.port import Call, CallIdentity, Failed, LoopTool

CHEAP_KINDS = frozenset({"python", "noop"})  # kinds of tools with cheap items
MAX_ITEMS_READ_TOGETHER = 10_000  # items that are read together
MAX_SCOPE_BYTES = 16 << 20  # bytes of other steps' data that every Spark task receives


def runs_on_spark(step: Step) -> bool:
    return step.loop is not None and step.loop.spec.policy.exec == "spark"


async def run_on_spark(context: CommandContext) -> e.Reported:
    tool = context.env.registry.get("spark")
    if not isinstance(tool, LoopTool):
        raise _loop_failure("this worker has no tool of kind 'spark'", "TOOL_UNAVAILABLE", "tool")
    _check_tasks(context)
    call = await _make_loop_call(context)
    items = await _open_items(context)
    journaled: set[int] = set(context.command.journal.shards)

    async def journal_shard(shard: int, done: e.Items) -> None:
        if shard in journaled:
            return
        journaled.add(shard)
        counts = replace(done, partial={})  # the report brings the reductions
        event = e.LoopShardDone(
            shard=shard,
            items=counts,
            **context.event_fields,
        )
        await context.journal(OutgoingEvent(event))

    outcome = await tool.run_loop(call, items, journal_shard)
    if isinstance(outcome, Failed):
        raise TaskFailed(outcome.failure)
    meta = Meta(tool=describe_tool("spark", tool), provenance=merge_provenance(outcome.provenance))
    stored = await context.persist.put_result("loop", outcome.value, {}, meta=meta)
    reducers = _list_reducers(context.step)
    total = reduce(lambda left, right: add_counts(reducers, left, right), outcome.shards)
    count = total.ok + total.failed + total.skipped
    envelope = Envelope(
        status="ok",
        reference=stored.reference,
        context={"row_count": count},
        meta=meta,
    )
    counts = await context.store_gathered("loop", replace(total, first=0))
    return context.completed_event(envelope, items=counts)


def _list_reducers(step: Step) -> dict[str, str]:
    if step.loop is None:
        return {}
    return {name: str(reducer) for name, reducer in step.loop.spec.reduce.items()}


def _check_tasks(context: CommandContext) -> None:
    """Fail at once, instead of once per item, if a task cannot run on Spark."""
    for task in context.shared.tasks:
        if task.kind not in SPARK_LOOP_KINDS:
            kinds = ", ".join(sorted(SPARK_LOOP_KINDS))
            raise _loop_failure(f"task {task.name}: a loop on Spark runs {kinds}, not {task.kind}")


def _loop_failure(
    message: str,
    code: str = "LOOP_ON_SPARK",
    kind: str = "config",
) -> TaskFailed:
    return TaskFailed(Failure(code=code, kind=kind, message=message))


async def _make_loop_call(context: CommandContext) -> Call:
    command, env, loop = context.command, context.env, context.step.loop
    assert loop is not None
    tasks = context.shared.tasks
    profiles = (task.spec.profile for task in tasks if task.spec.profile)
    config = {
        "profile": next(profiles, None),
        "size": command.size,
        "chunk": None if loop.spec.chunk == "auto" else loop.spec.chunk,
        "window": loop.spec.max_in_flight,
        "cheap": all(task.kind in CHEAP_KINDS for task in tasks),
        "secret": _has_secrets(context.plan.playbook),
        "provenance": any(task.provenance for task in tasks),
        "egress": env.registry.guard.rules,
        "plan": pickle.dumps(make_portable_plan(context.plan, command.step)),
        **await _make_portable_command(context),
    }
    identity = CallIdentity(
        ExecutionId(command.execution_id), command.step, "loop", lease=command.attempt
    )
    return Call(
        config=config,
        input={},
        key=derive_id("loop", command.execution_id, command.command_id),
        identity=identity,
        log=env.redactor.redact_log(env.logs("loop", None)),
        progress=env.redactor.redact_progress(env.progress),
        secret=context.payloads.keychain.resolve_guarded,
        credential=context.payloads.keychain.resolve_entry,
        tables=TableOptions(env.store.staging, env.redactor.redact_rows),
    )


def _has_secrets(playbook: Playbook) -> bool:
    """Whether the playbook uses secrets.

    Then its tasks share no Python process with another loop.
    """
    if playbook.keychain:
        return True
    for step in playbook.workflow:
        for task in step.tool:
            auth = task.target.auth if isinstance(task, SinkTask) else task.auth
            if auth or task.kind == "secrets":
                return True
    return False


def make_portable_plan(plan: Plan, step: str) -> Plan:
    """The plan of this step alone, without the expressions of the server. It can be pickled."""
    alone = StepPlan(
        step=plan.steps[step].step,
        order=0,
        site={},
        uses=UsedNames(),
        body_uses=UsedNames(),
    )
    return replace(plan, steps={step: alone}, reached_by={})


async def _make_portable_command(context: CommandContext) -> dict[str, bytes]:
    """The command with values in place of references, and the results that it reads, by step."""
    command, payloads = context.command, context.payloads
    scope = command.scope
    steps_read = context.plan.steps[command.step].body_uses.steps
    known: dict[str, Any] = {}
    results: dict[str, Envelope] = {}
    for name, envelope in scope.results.items():
        if envelope.reference is not None and name in steps_read:
            known[name] = await payloads.resolve(envelope.reference)
        results[name] = replace(envelope, reference=None)
    scope = replace(
        scope,
        ctx=await payloads.resolve_links(scope.ctx),
        args=await payloads.resolve_links(scope.args),
        scratch=await payloads.resolve_links(scope.scratch),
        outer=await payloads.resolve_links(scope.outer),
        results=results,
    )
    alone = replace(
        command,
        scope=scope,
        items=(),
        stop_on_failure=False,
    )
    parts = {"command": encode(alone), "known": encode(known)}
    size = sum(map(len, parts.values()))
    if size > MAX_SCOPE_BYTES:
        message = f"the body of step {command.step} reads {size >> 20} MB of other steps, which every task would hold"
        raise _loop_failure(f"{message}; put what an item needs into the collection")
    return parts


async def _open_items(context: CommandContext) -> Any:
    """The items of the loop: a reader of a stored row set, or batches of any other collection."""
    collection = context.command.collection
    if collection is not None and collection.kind == "reference":
        reference = collection.reference
        if reference is not None and is_rowset(reference):
            return await context.payloads.open_rowset(reference)
    return _read_item_batches(context, context.command)


async def _read_item_batches(
    context: CommandContext, command: Command
) -> AsyncIterator[list[IndexedItem]]:
    rendering = make_site_rendering(context)
    size = MAX_ITEMS_READ_TOGETHER
    if command.collection is not None and command.collection.kind == "failed":
        size = command.count  # one batch, so that the failed items are found only once
    for start in range(0, command.count, size):
        yield await read_items(context, rendering, start, min(start + size, command.count))

"""Loops on Spark: one command for the whole loop, whose items run in Spark's tasks with this very code (`spark/task.py`).

What the tasks need travels with the work: the plan, the command, and the data of other steps that the body's templates read.
What they find comes back as one row per item; a failed item is a row like any other. The report counts, and what it names is
the result: that a part has ended is told before (`loop.shard.done`), for those who watch.
"""

import dataclasses
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
from noetl.model.ids import ExecutionId, derive
from noetl.pipeline.chunk import added
from noetl.pipeline.collections import Indexed, items_of
from noetl.pipeline.context import Context
from noetl.pipeline.data import is_rowset
from noetl.pipeline.environment import OutgoingEvent
from noetl.pipeline.evaluate import site_rendering
from noetl.pipeline.failures import Failing
from noetl.pipeline.provenance import made_with, shared_provenance
from noetl.playbook.model import ON_SPARK, Playbook, SinkTask, Step
from noetl.playbook.plan import Plan, StepPlan, Uses
from noetl.results.tables import Tables
from noetl.tools.port import Call, CallIdentity, Failed, LoopTool

CHEAP = frozenset({"python", "noop"})
AT_ONCE = 10_000  # items that are read together
LARGEST_SCOPE = 16 << 20  # bytes of other steps' data that go with every task


def on_spark(step: Step) -> bool:
    return step.loop is not None and step.loop.spec.policy.exec == "spark"


async def run_on_spark(context: Context) -> e.Reported:
    tool = context.env.registry.get("spark")
    if not isinstance(tool, LoopTool):
        raise _wrong("this worker has no tool of kind 'spark'", "TOOL_UNAVAILABLE", "tool")
    _check(context)
    call = await _call(context)
    items = await _items(context)
    told: set[int] = set(context.command.journal.shards)

    async def tell(shard: int, done: e.Items) -> None:
        if shard not in told:
            told.add(shard)
            counts = replace(done, partial={})  # the report brings the reductions
            await context.journal(
                OutgoingEvent(e.LoopShardDone(shard=shard, items=counts, **context.common))
            )

    outcome = await tool.run_loop(call, items, tell)
    if isinstance(outcome, Failed):
        raise Failing(outcome.failure)
    meta = Meta(tool=made_with("spark", tool), provenance=shared_provenance(outcome.provenance))
    stored = await context.persist.result("loop", outcome.value, {}, meta=meta)
    found = reduce(lambda left, right: added(_reducers(context.step), left, right), outcome.shards)
    count = sum((found.ok, found.failed, found.skipped))
    envelope = Envelope(
        status="ok", reference=stored.reference, context={"row_count": count}, meta=meta
    )
    return context.completed(envelope, items=await context.counted("loop", replace(found, first=0)))


def _reducers(step: Step) -> dict[str, str]:
    return (
        {}
        if step.loop is None
        else {name: str(reducer) for name, reducer in step.loop.spec.reduce.items()}
    )


def _check(context: Context) -> None:
    """What cannot run in a task is told at once, not by every item."""
    for task in context.shared.tasks:
        if task.kind not in ON_SPARK:
            raise _wrong(
                f"task {task.name}: a loop on Spark runs {', '.join(sorted(ON_SPARK))}, not {task.kind}"
            )


def _wrong(message: str, code: str = "LOOP_ON_SPARK", kind: str = "config") -> Failing:
    return Failing(Failure(code=code, kind=kind, message=message))


async def _call(context: Context) -> Call:
    command, env, loop = context.command, context.env, context.step.loop
    assert loop is not None
    config = {
        "profile": next(
            (task.spec.profile for task in context.shared.tasks if task.spec.profile), None
        ),
        "size": command.size,
        "chunk": None if loop.spec.chunk == "auto" else loop.spec.chunk,
        "window": loop.spec.max_in_flight,
        "cheap": all(task.kind in CHEAP for task in context.shared.tasks),
        "secret": _has_secrets(context.plan.playbook),
        "provenance": any(task.provenance for task in context.shared.tasks),
        "plan": pickle.dumps(plan_of(context.plan, command.step)),
        **await _portable(context),
    }
    return Call(
        config=config,
        input={},
        key=derive("loop", command.execution_id, command.command_id),
        identity=CallIdentity(
            ExecutionId(command.execution_id), command.step, "loop", lease=command.attempt
        ),
        log=env.redactor.log(env.logs("loop", None)),
        progress=env.progress,
        secret=context.payloads.keychain.secret_of,
        credential=context.payloads.keychain.entry,
        tables=Tables(env.store.staging, env.redactor.batch),
    )


def _has_secrets(playbook: Playbook) -> bool:
    """Then its tasks share a Python process with no other loop."""
    tasks = [task for step in playbook.workflow for task in step.tool]
    named = any(task.target.auth if isinstance(task, SinkTask) else task.auth for task in tasks)
    return bool(playbook.keychain) or named or any(task.kind == "secrets" for task in tasks)


def plan_of(plan: Plan, step: str) -> Plan:
    """Of this step alone, and without what only a server evaluates: it can be sent."""
    alone = StepPlan(step=plan.steps[step].step, order=0, site={}, uses=Uses(), body=Uses())
    return dataclasses.replace(plan, steps={step: alone}, reached_by={})


async def _portable(context: Context) -> dict[str, bytes]:
    """The command with plain values in place of references, and the results it reads, by step."""
    command, payloads = context.command, context.payloads

    scope = command.scope
    known = {
        name: await payloads.resolve(envelope.reference)
        for name, envelope in scope.results.items()
        if envelope.reference is not None and name in context.plan.steps[command.step].body.steps
    }
    scope = replace(
        scope,
        ctx=await payloads.unlinked(scope.ctx),
        args=await payloads.unlinked(scope.args),
        scratch=await payloads.unlinked(scope.scratch),
        outer=await payloads.unlinked(scope.outer),
        results={
            name: replace(envelope, reference=None) for name, envelope in scope.results.items()
        },
    )
    alone = replace(command, scope=scope, items=(), stop_on_failure=False)
    made = {"command": encode(alone), "known": encode(known)}
    if (size := sum(map(len, made.values()))) > LARGEST_SCOPE:
        message = f"the body of step {command.step} reads {size >> 20} MB of other steps, which every task would hold"
        raise _wrong(f"{message}; put what an item needs into the collection")
    return made


async def _items(context: Context) -> Any:
    """Rows stay where they are stored; whatever else the loop runs over is read in batches."""
    collection = context.command.collection
    reference = (
        collection.reference if collection is not None and collection.kind == "reference" else None
    )
    if reference is not None and is_rowset(reference):
        return await context.payloads.open(reference)
    return _batches(context, context.command)


async def _batches(context: Context, command: Command) -> AsyncIterator[list[Indexed]]:
    rendering = site_rendering(context)
    failed = command.collection is not None and command.collection.kind == "failed"
    step = command.count if failed else AT_ONCE  # which ones failed is found once
    for start in range(0, command.count, step):
        yield await items_of(context, rendering, start, min(start + step, command.count))

"""Runs the tasks of a step once: for one activation, or for one item of a loop.

A pipeline with a journal runs an activation, or an item that is alone in its command. It stores the
value of each task and journals its envelope before the next task starts, so a new attempt continues
from there. A pipeline without a journal runs an item of a chunk. It keeps values in memory, and the
chunk reports them.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from noetl.faults import hit_fault_point
from noetl.model import events as e
from noetl.model.clock import format_iso
from noetl.model.codec import encode
from noetl.model.commands import MAX_HELD_DELAY_MICROS, Command, Journal
from noetl.model.decisions import AddPart
from noetl.model.envelope import (
    SELECTIONS_KEY,
    Envelope,
    Input,
    Meta,
    is_scalar,
    make_failed_envelope,
)
from noetl.model.errors import SAMPLE_KEY, Failure
from noetl.model.ids import Micros, call_id
from noetl.pipeline.environment import Environment, OutgoingEvent, SeededFunctions, SendJournalEntry
from noetl.pipeline.failures import TaskFailed, limit_failure
from noetl.pipeline.output.provenance import describe_tool
from noetl.pipeline.output.result_writer import ResultWriter, StorageWish, find_tables
from noetl.pipeline.scope.lazy_results import LazyResult
from noetl.pipeline.scope.names import (
    REDUCED_WRITES,
    CommandNames,
    LoopItem,
    ScopeWrites,
    TemplateScope,
    describe_failed_call,
    empty_result,
)
from noetl.pipeline.scope.origins import TextOrigins
from noetl.pipeline.scope.rendering import TaskRendering
from noetl.pipeline.scope.results import ResultReader
from noetl.pipeline.task import pages, policy
from noetl.pipeline.task.calls import (
    SuccessfulTry,
    TaskCaller,
    TaskTry,
    from_success,
    run_call,
    run_call_in_memory,
)
from noetl.pipeline.task.pages import LaterPage
from noetl.pipeline.task.policy import Break, Continue, Fail, Jump, Retry, Verdict
from noetl.playbook.assignments import is_state
from noetl.playbook.model import NoopTask, SinkTask, Step, Task
from noetl.playbook.plan import StepPlan, find_templates
from noetl.playbook.reducers import REFERENCE_REDUCERS
from noetl.results.formats.tables import ArrowRecords
from noetl.template.limits import WORKER_LIMITS
from noetl.template.rendering import Renderer
from noetl.tools.port import Failed, Success, Suspend
from noetl.tools.workbook import resolve_workbook_call

MAX_RECOVERED_MESSAGE_CHARS = 200  # characters
# Tools of these kinds return data of other systems.
FOREIGN_DATA_KINDS = frozenset({"artifact", "http", "nats", "shell"})
# For tools of these kinds, the field of the task that the result quotes.
QUOTED_PLACE_FIELDS = {
    "sink": "target",
    "transfer": "target",
    "spark": "output",
}
MAX_OUTER_BYTES = 2_048  # of the outer iterations that a child execution receives
MAX_WORKLOAD_BYTES = 2_048  # of a child's input that an event carries


class PipelineEnd(Struct, frozen=True):
    """The end of a pipeline.

    `value` is the value of the last successful task. `failure` is set if the pipeline failed. `ran`
    is False if every task was skipped.
    """

    value: LazyResult
    failure: Failure | None = None
    facts: dict[str, Any] = {}
    tries: int = 1
    ran: bool = True
    sinks: tuple[str, ...] = ()
    meta: Meta | None = None  # of the task that failed
    recovered: e.Recovered | None = None  # errors that rules let pass; None if the pipeline failed


class PipelinePause(Struct, frozen=True):
    """The pipeline waits for `suspend`; if that is None, for a retry or a page after `delay`."""

    task: str
    suspend: Suspend | None = None
    delay: Micros = 0
    tries: int = 0
    failure: Failure | None = None


@dataclass(slots=True)
class TaskPosition:
    """The position of a pipeline in its tasks."""

    goto: int = 0
    runs: dict[str, int] = field(default_factory=dict)
    tries: int = 0  # ended tries of the task at `goto`
    jumps: int = 0
    page: Any = None
    resolved: Envelope | None = None
    task_input: dict[str, Any] = field(default_factory=dict)  # the input of the current try
    # Whether `given` has a text of a payload; None if this is not computed yet.
    has_payload_text: bool | None = None


def list_step_tasks(step: Step) -> list[Task]:
    """The tasks of the step; a step without tasks has one `noop`."""
    return list(step.tool) or [NoopTask(name=step.step)]


class SharedPipelineParts(Struct, frozen=True):
    """What the pipelines of all items of one command share.

    A task in `broken` fails when it is run.
    """

    env: Environment
    command: Command
    step: Step
    tasks: tuple[Task, ...]
    broken: dict[str, Failure]
    persist: ResultWriter
    issued: CommandNames

    @classmethod
    def from_command(
        cls,
        env: Environment,
        command: Command,
        plan: StepPlan,
        workbook: Mapping[str, Task],
        payloads: ResultReader,
        persist: ResultWriter,
    ) -> "SharedPipelineParts":
        step = plan.step
        tasks: list[Task] = []
        broken: dict[str, Failure] = {}
        for task in list_step_tasks(step):
            resolved_task = resolve_workbook_call(task, workbook)
            if isinstance(resolved_task, Failure):
                broken[task.name] = resolved_task
                tasks.append(task)
            else:
                tasks.append(resolved_task)
        issued = CommandNames.from_command(command, payloads, plan.uses.steps)
        return cls(env, command, step, tuple(tasks), broken, persist, issued)


class Pipeline:
    """Runs the tasks of one activation or of one item, in order, with their policies."""

    def __init__(
        self,
        shared: SharedPipelineParts,
        writes: ScopeWrites,
        *,
        item: LoopItem | None = None,
        journal: SendJournalEntry | None = None,
        behind: int = 0,
    ) -> None:
        self.env = env = shared.env
        self.command = command = shared.command
        self.step = shared.step
        self.tasks = shared.tasks
        self._broken = shared.broken
        self.payloads = shared.issued.payloads
        self.persist = shared.persist
        self.names = TemplateScope(
            shared.issued, writes, item, format_iso(env.clock.now()), journaled=journal is not None
        )
        self._journal = journal
        self._earlier_tries = behind  # tries that a deferred item has made already
        self._position = TaskPosition()
        self._ran = False
        self._most_tries = 1
        self._ended_sinks: list[str] = []
        self._recovered: e.Recovered | None = None
        self._sets = 0
        if journal is not None:
            self._resume_journal(command.journal)

    def _resume_journal(self, journal: Journal) -> None:
        """Continue where the journal of an earlier attempt ends."""
        names = self.names
        for task, envelope in journal.results.items():
            names.tasks[task] = LazyResult(envelope, self.payloads)
        if journal.prev is not None:
            names.prev = LazyResult(journal.prev, self.payloads)
        if journal.last is not None:
            names.last = LazyResult(journal.last, self.payloads)
        self._ran = bool(journal.runs)
        self._recovered = journal.recovered
        names.restore_writes(journal.set)
        self._position = TaskPosition(
            journal.goto,
            dict(journal.runs),
            journal.tries,
            journal.jumps,
            journal.page,
            journal.resolved,
        )

    # ---- the sequence ----------------------------------------------------------------------------

    async def run(self) -> PipelineEnd | PipelinePause:
        while self._position.goto < len(self.tasks):
            task = self.tasks[self._position.goto]
            try:
                ended = await self._run_task(task)
            except TaskFailed as failing:
                failure = limit_failure(failing.failure, task=task.name)
                return self._end_with_failure(failure, {}, Meta(tool=self._describe_tool(task)))
            if ended is not None:
                return ended
        return self._end_well()

    def _end_well(self) -> PipelineEnd:
        last = self.names.last
        because = ""
        if last is not None:
            because = last.envelope.explain_no_value(describe_failed_call(last))
        value = self.names.prev or empty_result(self.payloads, because)
        return PipelineEnd(
            value,
            tries=self._most_tries,
            ran=self._ran,
            sinks=tuple(self._ended_sinks),
            recovered=self._recovered,
        )

    def _end_with_failure(
        self,
        failure: Failure,
        facts: dict[str, Any],
        meta: Meta | None,
    ) -> PipelineEnd:
        value = self.names.prev or empty_result(self.payloads)
        tries = max(self._most_tries, self._position.tries)
        return PipelineEnd(
            value,
            failure,
            facts,
            tries=tries,
            sinks=tuple(self._ended_sinks),
            meta=meta,
        )

    async def _run_task(self, task: Task) -> PipelineEnd | PipelinePause | None:
        """Run one task until it has ended for good. Returns None if the pipeline goes on."""
        at = self._position
        run = at.runs.get(task.name, 0) + 1
        if at.tries == 0 and self._earlier_tries and policy.has_retry_rule(task):
            at.tries = self._earlier_tries
        while True:
            task_try = TaskTry(task, run, at.tries + 1)
            outcome = await self._run_try(task_try)
            if outcome is None:
                at.goto += 1
                return None
            if isinstance(outcome, Suspend):
                return await self._suspend_task(task_try, outcome)
            if isinstance(outcome, LaterPage):
                return PipelinePause(task.name, delay=outcome.delay, tries=at.tries)
            at.tries += 1
            self._most_tries = max(self._most_tries, at.tries)
            result = await self._store_outcome(task_try, outcome)
            result, verdict = await self._judge_result(task_try, result)
            if not isinstance(verdict, Retry):
                return await self._settle_task(task_try, result, verdict)
            pause = await self._wait_for_retry(task_try, result, verdict)
            if pause is not None:
                return pause

    async def _settle_task(
        self,
        task_try: TaskTry,
        result: LazyResult,
        verdict: Continue | Break | Jump | Fail,
    ) -> PipelineEnd | None:
        """Close a task that has ended: move on and journal its end.

        The last task needs no entry, because the report tells its end.
        """
        task, at = task_try.task, self._position
        transparent = isinstance(task, SinkTask)
        target = self._find_target(task, verdict)
        self._ran = True
        if not transparent:
            self._drop_earlier_result(task.name)
            self.names.tasks[task.name] = self.names.last = result
            if result.envelope.ok:
                self.names.prev = result
        elif result.envelope.ok:
            self._ended_sinks.append(task.name)
        if isinstance(verdict, Fail):
            failure = limit_failure(verdict.failure, task=task.name, attempt=task_try.attempt)
            return self._end_with_failure(failure, result.envelope.context, result.envelope.meta)
        self._note_recovery(task, verdict)
        at.runs[task.name] = task_try.run
        at.goto, at.tries, at.page = target, 0, None
        if target >= len(self.tasks):
            return self._end_well()
        await self._journal_entry(
            lambda common, values: e.TaskDone(
                task=task.name,
                run=task_try.run,
                goto=target,
                result=result.envelope,
                jumps=at.jumps,
                transparent=transparent,
                set=values,
                recovered=self._recovered,
                **common,
            )
        )
        self._ended_sinks.clear()
        return None

    def _note_recovery(self, task: Task, verdict: Continue | Break | Jump) -> None:
        """Count a failure that a rule lets pass.

        A rule that asked in vain for a retry of a success counts too.
        """
        error = verdict.let_pass
        if error is None:
            return
        by: Literal["continue", "break", "jump"] = "continue"
        if isinstance(verdict, Break):
            by = "break"
        elif isinstance(verdict, Jump):
            by = "jump"
        message = error.message[:MAX_RECOVERED_MESSAGE_CHARS]
        recovered = e.Recovered(
            task=task.name,
            by=by,
            code=error.code,
            message=message,
        )
        if self._recovered is None:
            self._recovered = recovered
        else:
            self._recovered = self._recovered.add_later_errors(recovered)

    def _drop_earlier_result(self, task: str) -> None:
        """Drop the data of an earlier run of the task, so that a pipeline that jumps back many
        times holds the data of its last round only."""
        former = self.names.tasks.get(task)
        if former is not None and former.envelope.reference is not None:
            self.payloads.drop(former.envelope.reference)

    def _find_target(self, task: Task, verdict: Verdict) -> int:
        """The position of the task that follows."""
        match verdict:
            case Jump(to=to, max_jumps=most):
                self._position.jumps += 1
                if self._position.jumps > most:
                    message = f"the pipeline jumped more than {most} times; raise max_jumps if that is meant"
                    failure = Failure(code="JUMP_LIMIT", kind="policy", message=message)
                    raise TaskFailed(failure, final=True)
                return self._find_task(task, to)
            case Break():
                return len(self.tasks)
            case _:
                return self._position.goto + 1

    def _find_task(self, task: Task, to: str) -> int:
        if to == "previous":
            return max(self._position.goto - 1, 0)
        for number, other in enumerate(self.tasks):
            if other.name == to:
                return number
        message = f"task {task.name} jumps to {to!r}, which is no task of this step"
        raise TaskFailed(Failure(code="JUMP_UNKNOWN", kind="policy", message=message), final=True)

    # ---- one try ---------------------------------------------------------------------------------

    async def _run_try(
        self, task_try: TaskTry
    ) -> SuccessfulTry | Failed | Suspend | LaterPage | None:
        """Run one try of a task. Returns None if the task is skipped."""
        at = self._position
        task = task_try.task
        at.task_input, at.has_payload_text = {}, None
        try:
            if task.name in self._broken:
                return Failed(self._broken[task.name])
            if at.resolved is not None:
                at.task_input = await self._make_caller().render_input(task_try)
                return self._take_resolved()
            when = task.spec.when
            if when is not None and at.tries in (0, self._earlier_tries) and at.page is None:
                # before the first try and the first page
                if not await self._make_rendering(task_try, {}, "when").evaluate_guard(when):
                    return None
            prepared = await self._make_caller_of(task).prepare(task_try)
            at.task_input = self.names.input
            if task.spec.paginate is not None:
                return await self._run_pages(task_try, prepared)
            if self._journal is None:
                outcome = await run_call_in_memory(prepared)
            else:
                outcome = await run_call(prepared)
            if isinstance(outcome, Success):
                return from_success(outcome)
            return outcome
        except TaskFailed as failing:
            if failing.final:
                raise
            return Failed(failing.failure)

    def _make_caller(self) -> TaskCaller:
        """A new one for each use: if the pipeline kept it, both would form a reference cycle that
        holds all their data until the garbage collector runs."""
        return TaskCaller(self.env, self.command, self.step, self.names, self._make_rendering)

    def _make_caller_of(self, task: Task) -> TaskCaller:
        """The caller of a task. A value that is stored at once, and needed nowhere else, may be
        columns."""
        caller = self._make_caller()
        is_stored = self._journal is not None and self.names.item is None
        caller.allows_columns = is_stored and task.spec.paginate is None
        return caller

    def _take_resolved(self) -> SuccessfulTry | Failed:
        """The outcome of a task that waited: the result it waited for."""
        envelope, self._position.resolved = self._position.resolved, None
        assert envelope is not None
        if not envelope.ok:
            failure = envelope.error
            if failure is None:
                failure = Failure(code="FAILED", message="what the task waited for failed")
            return Failed(failure)
        if envelope.reference is None and not envelope.no_value:
            return SuccessfulTry(envelope.context.get("value"))
        not_copied = (SELECTIONS_KEY, "results")
        context = {
            name: value for name, value in envelope.context.items() if name not in not_copied
        }
        copied = replace(envelope, context=context, meta=None)
        return SuccessfulTry(stored=LazyResult(copied, self.payloads))

    async def _store_outcome(
        self, task_try: TaskTry, outcome: SuccessfulTry | Failed
    ) -> LazyResult:
        """The outcome with its envelope. It is durable if the pipeline has a journal."""
        if isinstance(outcome, Failed):
            return await self._make_failed_result(task_try, outcome)
        meta = await self._make_meta(task_try)
        if outcome.stored is not None:
            return LazyResult(replace(outcome.stored.envelope, meta=meta), self.payloads)
        if self._journal is None:
            envelope = Envelope(
                status="ok",
                context=dict(outcome.facts),
                meta=meta,
            )
            return LazyResult(envelope, self.payloads, outcome.value)
        parent = None
        if self.names.last is not None:
            parent = self.names.last.envelope
        envelope = await self.persist.put_result(
            self._make_label(task_try),
            outcome.value,
            outcome.facts,
            parent=parent,
            meta=meta,
            wish=StorageWish.from_output(task_try.task.output),
            texts=self._may_show_texts(task_try),
        )
        if find_tables(outcome.value) or isinstance(outcome.value, ArrowRecords):
            return LazyResult(envelope, self.payloads)
        return LazyResult(envelope, self.payloads, outcome.value)

    async def _make_failed_result(self, task_try: TaskTry, outcome: Failed) -> LazyResult:
        failure = limit_failure(outcome.failure, task=task_try.task.name, attempt=task_try.attempt)
        failure = await self._store_sample(task_try, failure, outcome.sample)
        meta = await self._make_failure_meta(task_try)
        envelope = replace(make_failed_envelope(failure, **outcome.facts), meta=meta)
        return LazyResult(envelope, self.payloads, None)

    async def _store_sample(
        self,
        task_try: TaskTry,
        failure: Failure,
        sample: list[dict[str, Any]] | None,
    ) -> Failure:
        """The failure with a reference to its sample.

        An item of a loop stores none, because the items of a command share their labels.
        """
        if not sample or self._journal is None or self.names.item is not None:
            return failure
        try:
            reference = await self.persist.put_value(f"{self._make_label(task_try)}.sample", sample)
        except TaskFailed:
            return failure  # report the original failure, without the sample
        return replace(failure, detail={**failure.detail, SAMPLE_KEY: to_builtins(reference)})

    async def _make_meta(self, task_try: TaskTry) -> Meta:
        task = task_try.task
        provenance: dict[str, Any] = {}
        if task.provenance:
            provenance = await self._make_rendering(task_try, {}, "provenance").value(
                task.provenance
            )
        task_input = await self._store_input(task_try)
        return Meta(
            tool=self._describe_tool(task),
            input=task_input,
            provenance=provenance,
        )

    async def _make_failure_meta(self, task_try: TaskTry) -> Meta:
        """The meta as far as it can be made: an error in it must not replace the task's own
        failure."""
        try:
            return await self._make_meta(task_try)
        except TaskFailed:
            return Meta(tool=self._describe_tool(task_try.task))

    def _describe_tool(self, task: Task) -> dict[str, str]:
        return describe_tool(task.kind, self.env.registry.get(task.kind))

    async def _store_input(self, task_try: TaskTry) -> Input | None:
        """The input as the envelope records it. None for an item: the loop names its collection."""
        if not self._position.task_input or self._journal is None or self.names.item is not None:
            return None
        inline = not self._has_text_of_payload(task_try.task)
        return await self.persist.put_input(
            self._make_label(task_try), self._position.task_input, inline=inline
        )

    def _make_label(self, task_try: TaskTry, page: int = 0) -> str:
        """A label that no other put of this attempt has: a task may run and be tried again."""
        label = task_try.task.name
        if task_try.run != 1:
            label = f"{label}.r{task_try.run}"
        if task_try.attempt != 1:
            label = f"{label}.t{task_try.attempt}"
        if page:
            label = f"{label}.p{page}"
        return label

    async def _judge_result(
        self, task_try: TaskTry, result: LazyResult
    ) -> tuple[LazyResult, Verdict]:
        """The verdict on a result: first the task's `set`, if it succeeded, then its policy."""
        task = task_try.task
        if result.envelope.ok and task.set:
            try:
                await self._assign_values(task.set, self._rendering_after(task_try, result, "set"))
            except TaskFailed as failing:
                failure = limit_failure(failing.failure, task=task.name, attempt=task_try.attempt)
                result = LazyResult(make_failed_envelope(failure), self.payloads, None)
        error = result.envelope.error
        if not task.spec.policy.rules:
            if error is None:
                return result, Continue()
            return result, Fail(error)
        try:
            return result, await self._apply_policy(task_try, result)
        except TaskFailed as failing:
            if error is None:
                raise
            return result, Fail(error.join_later_failure(failing.failure))

    async def _apply_policy(self, task_try: TaskTry, result: LazyResult) -> Verdict:
        """The verdict of the first matching rule, after its `set`."""
        rendering = self._rendering_after(task_try, result, "policy")
        action = await policy.find_action(task_try.task.spec.policy.rules, rendering)
        if action is not None and action.set:
            await self._assign_values(action.set, rendering)
        chance = self._make_functions(task_try, "jitter").random(0)
        return await policy.reach_verdict(
            action, result.envelope.error, self._position.tries, rendering, chance
        )

    async def _assign_values(self, values: dict[str, Any], rendering: TaskRendering) -> None:
        """Every value is rendered before the first one is assigned."""
        rendered = {target: await rendering.value(value) for target, value in values.items()}
        for target, value in rendered.items():
            if is_state(target):
                # Events show secrets redacted, so state holds the redacted value from the start.
                value = self.env.redactor.redact_value(value)
            literal = next(find_templates(values[target]), None) is None
            self.names.assign_value(target, value, literal=literal)

    # ---- again, later ----------------------------------------------------------------------------

    async def _wait_for_retry(
        self, task_try: TaskTry, result: LazyResult, verdict: Retry
    ) -> PipelinePause | None:
        """Wait for the next try. Returns a pause if the delay is too long to hold a worker."""
        at, error = self._position, result.envelope.error
        page = 0
        if at.page is not None:
            page = at.page.number
        await self._journal_entry(
            lambda common, values: e.RetryStarted(
                task=task_try.task.name,
                run=task_try.run,
                tries=at.tries,
                error=error,
                page=page,
                delay=verdict.delay,
                set=values,
                **common,
            ),
            keep=True,
        )
        # The server cannot issue one item of a frame by itself, so a frame never pauses.
        if verdict.delay > MAX_HELD_DELAY_MICROS and self.command.kind != "frame":
            return PipelinePause(
                task_try.task.name,
                delay=verdict.delay,
                tries=at.tries,
                failure=error,
            )
        if verdict.delay:
            await asyncio.sleep(verdict.delay / 1_000_000)
        return None

    async def _suspend_task(
        self, task_try: TaskTry, suspend: Suspend
    ) -> PipelinePause | PipelineEnd:
        """The pause that a tool asks for.

        It is a failure without a journal, which could resume it.
        """
        task = task_try.task
        if self._journal is not None:
            if suspend.child is not None:
                suspend = replace(
                    suspend, child=await self._make_child_request(task_try, suspend.child)
                )
            return PipelinePause(task.name, suspend, tries=self._position.tries)
        message = f"{task.kind} waits, which an item can do only when it is alone in its command: set loop.spec.chunk: 1"
        failure = Failure(
            code="CANNOT_WAIT",
            kind="config",
            message=message,
            task=task.name,
        )
        return self._end_with_failure(failure, {}, Meta(tool=self._describe_tool(task)))

    async def _make_child_request(self, task_try: TaskTry, child: e.ChildRequest) -> e.ChildRequest:
        """The request as an event carries it.

        An input that is large, or has a text of a payload, goes by reference.
        """
        child = replace(child, iter=await self._describe_iteration(task_try.task))
        if _is_small_workload(child.workload) and not self._has_text_of_payload(task_try.task):
            return child
        label = f"{task_try.task.name}.workload"
        wish = StorageWish(store="kv")  # the tier that servers read
        reference = await self.persist.put_value(label, child.workload, kind="workload", wish=wish)
        return replace(child, workload={}, reference=reference)

    def _has_text_of_payload(self, task: Task) -> bool:
        """Whether the input of the current try has a text that comes from a payload."""
        at = self._position
        if at.has_payload_text is None:
            origins = TextOrigins(self.command, self.names)
            at.has_payload_text = origins.has_text_of_payload(self.step, task, at.task_input)
        return at.has_payload_text

    def _may_show_texts(self, task_try: TaskTry) -> bool:
        """Whether the envelope of the result may show its texts: if none comes from a payload."""
        task = task_try.task
        if task.kind in FOREIGN_DATA_KINDS or self._has_text_of_payload(task):
            return False
        if task.kind not in QUOTED_PLACE_FIELDS:
            return True
        place = task.config[QUOTED_PLACE_FIELDS[task.kind]]
        return not TextOrigins(self.command, self.names).reads_payload(self.step, task, place)

    async def _describe_iteration(self, task: Task) -> dict[str, Any]:
        """This iteration as a child execution sees it.

        Events carry it, so an item of a payload goes by reference unless it is a number, a boolean
        or null.
        """
        outer, item = self.command.scope.outer, self.names.item
        if item is None:
            return outer
        # `collection` is None for a loop over the workload, or over items that `loop.started`
        # lists.
        of_payload = self.command.collection is not None or self.command.scope.workload_by_reference
        value = await self.persist.link_value(f"{task.name}.item", item.value, texts=not of_payload)
        inner = {
            "index": item.index,
            "loop_id": item.loop_id,
            item.iterator: value,
        }
        if not outer:
            return inner
        with_outer = {**inner, "parent": outer}
        if len(encode(with_outer)) > MAX_OUTER_BYTES:
            return inner
        return with_outer

    # ---- pages -----------------------------------------------------------------------------------

    async def _run_pages(
        self, task_try: TaskTry, prepared: Any
    ) -> SuccessfulTry | Failed | Suspend | LaterPage:
        paginate = task_try.task.spec.paginate
        assert paginate is not None

        async def store_page(number: int, page: Success) -> Failure | None:
            if paginate.sink is None:
                return None
            data, names = pages.make_sink_data(paginate, page.value)
            task = SinkTask(
                name=task_try.task.name,
                target=paginate.sink.target,
                data=data,
            )
            return await self._run_page_sink(task_try, task, number, page, names)

        async def journal_page(
            number: int,
            page: Success,
            cursor: dict[str, Any],
        ) -> None:
            await self._journal_page(task_try, number, page, cursor)

        paging = pages.Paging(
            paginate=paginate,
            prepared=prepared,
            call=run_call_in_memory,
            key=lambda number: self._make_caller().call_key(task_try, number),
            rendering=lambda page: self._rendering_after(
                task_try, self._result_of_page(page), "paginate"
            ),
            sink=store_page,
            journal=None if self._journal is None else journal_page,
        )
        book = self._position.page = await self._open_book(task_try)
        outcome = await pages.turn_pages(paging, book)
        collect = paginate.collect
        if isinstance(outcome, SuccessfulTry) and collect is not None and collect.into is not None:
            self.names.assign_value(collect.into, outcome.value["data"])
        return outcome

    def _result_of_page(self, page: Success) -> LazyResult:
        envelope = Envelope(status="ok", context=dict(page.facts))
        return LazyResult(envelope, self.payloads, page.value)

    async def _open_book(self, task_try: TaskTry) -> pages.CollectedPages:
        """The pages that this call has read so far, on this worker or in an earlier attempt."""
        page, paginate = self._position.page, task_try.task.spec.paginate
        assert paginate is not None
        if page is None:
            return pages.CollectedPages()
        if isinstance(page, pages.CollectedPages):  # of an earlier try on this worker
            return page
        parts: list[AddPart] = []
        if paginate.collect is not None:
            call = call_id(self.command.command_id, task_try.task.name, task_try.run)
            parts = await self.payloads.list_parts(call)
            parts.sort(key=lambda part: part.first)
        values = [await self.payloads.resolve(part.reference) for part in parts]
        cursor = await self.payloads.resolve_links(page.cursor)
        return pages.reopen_book(paginate, replace(page, cursor=cursor), values)

    async def _journal_page(
        self,
        task_try: TaskTry,
        number: int,
        page: Success,
        cursor: dict[str, Any],
    ) -> None:
        """Store a page and journal it."""
        value = page.value
        if value is None:
            value = {}  # a page is a part of a manifest, so it needs a reference
        label = self._make_label(task_try, number)
        meta = Meta(tool=self._describe_tool(task_try.task))
        wish = StorageWish(None, StorageWish.from_output(task_try.task.output).lifetime)
        envelope = await self.persist.put_result(
            label,
            value,
            page.facts,
            meta=meta,
            wish=wish,
            texts=self._may_show_texts(task_try),
        )
        carried = await self.persist.carry_cursor(label, cursor)
        await self._journal_entry(
            lambda common, values: e.CallPage(
                task=task_try.task.name,
                run=task_try.run,
                page=number,
                result=envelope,
                cursor=carried,
                set=values,
                **common,
            )
        )
        self._position.tries = 0

    async def _run_page_sink(
        self,
        task_try: TaskTry,
        task: SinkTask,
        number: int,
        page: Success,
        names: dict[str, Any],
    ) -> Failure | None:
        """Run the sink of a page. Returns its failure."""
        page_names = self.names.make_output_names(self._result_of_page(page)) | names

        def render_in_page(
            sink_try: TaskTry,
            more: dict[str, Any],
            place: str,
        ) -> TaskRendering:
            return self._make_rendering(sink_try, {**page_names, **more}, place)

        caller = TaskCaller(self.env, self.command, self.step, self.names, render_in_page)
        prepared = await caller.prepare(TaskTry(task, task_try.run, task_try.attempt))
        page_call = prepared.for_page(number, {}, caller.call_key(task_try, number))
        outcome = await run_call_in_memory(page_call)
        if isinstance(outcome, Failed):
            return outcome.failure
        return None

    # ---- rendering and reporting -----------------------------------------------------------------

    def _make_functions(self, task_try: TaskTry, place: str) -> SeededFunctions:
        index = -1
        if self.names.item is not None:
            index = self.names.item.index
        name, run, attempt = task_try.task.name, task_try.run, task_try.attempt
        seed = f"{self.command.command_id}:{index}:{name}:{run}:{attempt}:{place}"
        return SeededFunctions(seed, self.env.clock)

    def _make_rendering(
        self,
        task_try: TaskTry,
        more: dict[str, Any],
        place: str,
        outcome: LazyResult | None = None,
    ) -> TaskRendering:
        task = task_try.task.name
        names = {
            "_task": task,
            "_attempt": task_try.attempt,
            **more,
        }
        scope = partial(self.names.make_scope, outcome, task, **names)
        where = f"step {self.step.step}, task {task}, {place}"
        renderer = Renderer(WORKER_LIMITS, self._make_functions(task_try, place))
        return TaskRendering(scope, self.payloads, renderer, where)

    def _rendering_after(
        self,
        task_try: TaskTry,
        result: LazyResult,
        place: str,
    ) -> TaskRendering:
        """The scope for expressions about an outcome: the task's own name means its result."""
        return self._make_rendering(task_try, {}, place, result)

    async def _journal_entry(self, event: Any, *, keep: bool = False) -> None:
        """Journal one entry with the assignments since the last one. Returns when it is
        acknowledged.

        With `keep`, the next entry repeats these assignments.
        """
        if self._journal is None:
            return
        changed = dict(self.names.writes.changed)
        common = {
            "command_id": self.command.command_id,
            "attempt": self.command.attempt,
            "step": self.command.step,
            "activation": self.command.activation,
        }
        values = await self.take_assignments()
        entry = OutgoingEvent(event(common, values), self.persist.take_references())
        await self._journal(entry)
        if keep:
            self.names.writes.changed = {**changed, **self.names.writes.changed}
        hit_fault_point("journal.after")

    async def take_assignments(self) -> dict[str, Any]:
        """The assignments since the last journal entry, as events carry them."""
        writes = self.names.writes
        changed, writes.changed = writes.changed, {}
        self._sets += 1
        label = f"set{self._sets}"
        reduced = changed.pop(REDUCED_WRITES, None)
        values = await self.persist.carry_assignments(label, changed, writes.literal)
        if reduced is not None:
            values[REDUCED_WRITES] = [
                await self._link_reduced_write(f"{label}.r{number}", *write)
                for number, write in enumerate(reduced)
            ]
        return values

    async def _link_reduced_write(self, label: str, name: str, value: Any) -> list[Any]:
        """A write with a reducer, as the journal holds it.

        If the reducer makes a list or map, texts go by reference, because the list or map does.
        """
        _, reducer = self.names.writes.reducers[name]
        link = await self.persist.link_value(label, value, texts=reducer not in REFERENCE_REDUCERS)
        return [name, link]


def _is_small_workload(workload: dict[str, Any]) -> bool:
    if not all(map(is_scalar, workload.values())):
        return False
    return len(encode(workload)) <= MAX_WORKLOAD_BYTES

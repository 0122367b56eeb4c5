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

from noetl.faults import fault
from noetl.model import events as e
from noetl.model.clock import iso
from noetl.model.codec import encode
from noetl.model.commands import LONGEST_HELD_DELAY, Command, Journal
from noetl.model.decisions import AddPart
from noetl.model.envelope import SELECTIONS, Envelope, Input, Meta, failed, is_scalar
from noetl.model.errors import SAMPLE, Failure
from noetl.model.ids import Micros, call_id
from noetl.pipeline import pages, policy
from noetl.pipeline.calls import Caller, Done, TaskTry, done, perform, perform_in_memory
from noetl.pipeline.data import LazyResult, ResultReader
from noetl.pipeline.environment import Environment, Journaling, OutgoingEvent, SeededFunctions
from noetl.pipeline.failures import Failing, bounded
from noetl.pipeline.names import (
    REDUCED,
    Issued,
    LoopItem,
    ScopeWrites,
    TemplateScope,
    failed_call,
    nothing,
)
from noetl.pipeline.origins import Origins
from noetl.pipeline.pages import Later
from noetl.pipeline.persist import ResultWriter, StorageWish, tables_in
from noetl.pipeline.policy import Again, Break, Fail, Go, Jump, Verdict
from noetl.pipeline.provenance import made_with
from noetl.pipeline.rendering import TaskRendering
from noetl.playbook.assignments import is_state
from noetl.playbook.model import NoopTask, SinkTask, Step, Task
from noetl.playbook.plan import StepPlan, templates_in
from noetl.playbook.reducers import GATHERING
from noetl.tools.port import Failed, Success, Suspend
from noetl.tools.workbook import called

MAX_RECOVERED_MESSAGE = 200  # characters
# Tools of these kinds return data of other systems.
FETCHING = frozenset({"artifact", "http", "nats", "shell"})
# For tools of these kinds, the field of the task that the result quotes.
PLACES = {
    "sink": "target",
    "transfer": "target",
    "spark": "output",
}
MAX_OUTER_BYTES = 2_048  # of the outer iterations that a child execution receives
MAX_WORKLOAD_BYTES = 2_048  # of a child's input that an event carries


class Ended(Struct, frozen=True):
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
class Tasks:
    """The position of a pipeline in its tasks."""

    goto: int = 0
    runs: dict[str, int] = field(default_factory=dict)
    tries: int = 0  # ended tries of the task at `goto`
    jumps: int = 0
    page: Any = None
    resolved: Envelope | None = None
    given: dict[str, Any] = field(default_factory=dict)  # the input of the current try
    of_payload: bool | None = None  # whether `given` has a text of a payload; None: not computed


def tasks_of(step: Step) -> list[Task]:
    """The tasks of the step; a step without tasks has one `noop`."""
    return list(step.tool) or [NoopTask(name=step.step)]


class Shared(Struct, frozen=True):
    """What the pipelines of all items of one command share.

    A task in `broken` fails when it is run.
    """

    env: Environment
    command: Command
    step: Step
    tasks: tuple[Task, ...]
    broken: dict[str, Failure]
    persist: ResultWriter
    issued: Issued

    @classmethod
    def by(
        cls,
        env: Environment,
        command: Command,
        plan: StepPlan,
        workbook: Mapping[str, Task],
        payloads: ResultReader,
        persist: ResultWriter,
    ) -> "Shared":
        step = plan.step
        tasks: list[Task] = []
        broken: dict[str, Failure] = {}
        for task in tasks_of(step):
            resolved_task = called(task, workbook)
            if isinstance(resolved_task, Failure):
                broken[task.name] = resolved_task
                tasks.append(task)
            else:
                tasks.append(resolved_task)
        issued = Issued.by(command, payloads, plan.uses.steps)
        return cls(env, command, step, tuple(tasks), broken, persist, issued)


class Pipeline:
    """Runs the tasks of one activation or of one item, in order, with their policies."""

    def __init__(
        self,
        shared: Shared,
        writes: ScopeWrites,
        *,
        item: LoopItem | None = None,
        journal: Journaling | None = None,
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
            shared.issued, writes, item, iso(env.clock.now()), journaled=journal is not None
        )
        self._journal = journal
        self._behind = behind  # tries that a deferred item has made already
        self._at = Tasks()
        self._ran = False
        self._most_tries = 1
        self._sinks: list[str] = []
        self._recovered: e.Recovered | None = None
        self._sets = 0
        if journal is not None:
            self._resume(command.journal)

    def _resume(self, journal: Journal) -> None:
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
        names.restore(journal.set)
        self._at = Tasks(
            journal.goto,
            dict(journal.runs),
            journal.tries,
            journal.jumps,
            journal.page,
            journal.resolved,
        )

    # ---- the sequence ----------------------------------------------------------------------------

    async def run(self) -> Ended | PipelinePause:
        while self._at.goto < len(self.tasks):
            task = self.tasks[self._at.goto]
            try:
                ended = await self._task(task)
            except Failing as failing:
                failure = bounded(failing.failure, task=task.name)
                return self._failed(failure, {}, Meta(tool=self._tool(task)))
            if ended is not None:
                return ended
        return self._good()

    def _good(self) -> Ended:
        last = self.names.last
        because = ""
        if last is not None:
            because = last.envelope.why_no_value(failed_call(last))
        value = self.names.prev or nothing(self.payloads, because)
        return Ended(
            value,
            tries=self._most_tries,
            ran=self._ran,
            sinks=tuple(self._sinks),
            recovered=self._recovered,
        )

    def _failed(
        self,
        failure: Failure,
        facts: dict[str, Any],
        meta: Meta | None,
    ) -> Ended:
        value = self.names.prev or nothing(self.payloads)
        tries = max(self._most_tries, self._at.tries)
        return Ended(
            value,
            failure,
            facts,
            tries=tries,
            sinks=tuple(self._sinks),
            meta=meta,
        )

    async def _task(self, task: Task) -> Ended | PipelinePause | None:
        """Run one task until it has ended for good. Returns None if the pipeline goes on."""
        at = self._at
        run = at.runs.get(task.name, 0) + 1
        if at.tries == 0 and self._behind and policy.retries(task):
            at.tries = self._behind
        while True:
            task_try = TaskTry(task, run, at.tries + 1)
            outcome = await self._try(task_try)
            if outcome is None:
                at.goto += 1
                return None
            if isinstance(outcome, Suspend):
                return await self._suspended(task_try, outcome)
            if isinstance(outcome, Later):
                return PipelinePause(task.name, delay=outcome.delay, tries=at.tries)
            at.tries += 1
            self._most_tries = max(self._most_tries, at.tries)
            result = await self._stored(task_try, outcome)
            result, verdict = await self._judged(task_try, result)
            if not isinstance(verdict, Again):
                return await self._settle(task_try, result, verdict)
            pause = await self._again(task_try, result, verdict)
            if pause is not None:
                return pause

    async def _settle(
        self,
        task_try: TaskTry,
        result: LazyResult,
        verdict: Go | Break | Jump | Fail,
    ) -> Ended | None:
        """Close a task that has ended: move on and journal its end.

        The last task needs no entry, because the report tells its end.
        """
        task, at = task_try.task, self._at
        transparent = isinstance(task, SinkTask)
        target = self._target(task, verdict)
        self._ran = True
        if not transparent:
            self._replace(task.name)
            self.names.tasks[task.name] = self.names.last = result
            if result.envelope.ok:
                self.names.prev = result
        elif result.envelope.ok:
            self._sinks.append(task.name)
        if isinstance(verdict, Fail):
            failure = bounded(verdict.failure, task=task.name, attempt=task_try.attempt)
            return self._failed(failure, result.envelope.context, result.envelope.meta)
        self._note_recovery(task, verdict)
        at.runs[task.name] = task_try.run
        at.goto, at.tries, at.page = target, 0, None
        if target >= len(self.tasks):
            return self._good()
        await self._send(
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
        self._sinks.clear()
        return None

    def _note_recovery(self, task: Task, verdict: Go | Break | Jump) -> None:
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
        message = error.message[:MAX_RECOVERED_MESSAGE]
        recovered = e.Recovered(
            task=task.name,
            by=by,
            code=error.code,
            message=message,
        )
        if self._recovered is None:
            self._recovered = recovered
        else:
            self._recovered = self._recovered.and_then(recovered)

    def _replace(self, task: str) -> None:
        """Drop the data of an earlier run of the task, so that a pipeline that jumps back many
        times holds the data of its last round only."""
        former = self.names.tasks.get(task)
        if former is not None and former.envelope.reference is not None:
            self.payloads.drop(former.envelope.reference)

    def _target(self, task: Task, verdict: Verdict) -> int:
        """The position of the task that follows."""
        match verdict:
            case Jump(to=to, most=most):
                self._at.jumps += 1
                if self._at.jumps > most:
                    message = f"the pipeline jumped more than {most} times; raise max_jumps if that is meant"
                    failure = Failure(code="JUMP_LIMIT", kind="policy", message=message)
                    raise Failing(failure, final=True)
                return self._named(task, to)
            case Break():
                return len(self.tasks)
            case _:
                return self._at.goto + 1

    def _named(self, task: Task, to: str) -> int:
        if to == "previous":
            return max(self._at.goto - 1, 0)
        for number, other in enumerate(self.tasks):
            if other.name == to:
                return number
        message = f"task {task.name} jumps to {to!r}, which is no task of this step"
        raise Failing(Failure(code="JUMP_UNKNOWN", kind="policy", message=message), final=True)

    # ---- one try ---------------------------------------------------------------------------------

    async def _try(self, task_try: TaskTry) -> Done | Failed | Suspend | Later | None:
        """Run one try of a task. Returns None if the task is skipped."""
        at = self._at
        task = task_try.task
        at.given, at.of_payload = {}, None
        try:
            if task.name in self._broken:
                return Failed(self._broken[task.name])
            if at.resolved is not None:
                at.given = await self._caller().given(task_try)
                return self._came()
            when = task.spec.when
            if when is not None and at.tries in (0, self._behind) and at.page is None:
                # before the first try and the first page
                if not await self._rendering(task_try, {}, "when").guard(when):
                    return None
            prepared = await self._caller().prepare(task_try)
            at.given = prepared.call.input
            if task.spec.paginate is not None:
                return await self._pages(task_try, prepared)
            if self._journal is None:
                outcome = await perform_in_memory(prepared)
            else:
                outcome = await perform(prepared)
            if isinstance(outcome, Success):
                return done(outcome)
            return outcome
        except Failing as failing:
            if failing.final:
                raise
            return Failed(failing.failure)

    def _caller(self) -> Caller:
        """A new one for each use: if the pipeline kept it, both would form a reference cycle that
        holds all their data until the garbage collector runs."""
        return Caller(self.env, self.command, self.step, self.names, self._rendering)

    def _came(self) -> Done | Failed:
        """The outcome of a task that waited: the result it waited for."""
        envelope, self._at.resolved = self._at.resolved, None
        assert envelope is not None
        if not envelope.ok:
            failure = envelope.error
            if failure is None:
                failure = Failure(code="FAILED", message="what the task waited for failed")
            return Failed(failure)
        if envelope.reference is None and not envelope.no_value:
            return Done(envelope.context.get("value"))
        not_copied = (SELECTIONS, "results")
        context = {
            name: value for name, value in envelope.context.items() if name not in not_copied
        }
        copied = replace(envelope, context=context, meta=None)
        return Done(stored=LazyResult(copied, self.payloads))

    async def _stored(self, task_try: TaskTry, outcome: Done | Failed) -> LazyResult:
        """The outcome with its envelope. It is durable if the pipeline has a journal."""
        if isinstance(outcome, Failed):
            return await self._failed_result(task_try, outcome)
        meta = await self._meta(task_try)
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
        envelope = await self.persist.result(
            self._label(task_try),
            outcome.value,
            outcome.facts,
            parent=parent,
            meta=meta,
            wish=StorageWish.of(task_try.task.output),
            texts=self._shows_texts(task_try),
        )
        if tables_in(outcome.value):
            return LazyResult(envelope, self.payloads)
        return LazyResult(envelope, self.payloads, outcome.value)

    async def _failed_result(self, task_try: TaskTry, outcome: Failed) -> LazyResult:
        failure = bounded(outcome.failure, task=task_try.task.name, attempt=task_try.attempt)
        failure = await self._with_sample(task_try, failure, outcome.sample)
        meta = await self._meta_of_failure(task_try)
        envelope = replace(failed(failure, **outcome.facts), meta=meta)
        return LazyResult(envelope, self.payloads, None)

    async def _with_sample(
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
            reference = await self.persist.put(f"{self._label(task_try)}.sample", sample)
        except Failing:
            return failure  # report the original failure, without the sample
        return replace(failure, detail={**failure.detail, SAMPLE: to_builtins(reference)})

    async def _meta(self, task_try: TaskTry) -> Meta:
        task = task_try.task
        provenance: dict[str, Any] = {}
        if task.provenance:
            provenance = await self._rendering(task_try, {}, "provenance").value(task.provenance)
        task_input = await self._input(task_try)
        return Meta(
            tool=self._tool(task),
            input=task_input,
            provenance=provenance,
        )

    async def _meta_of_failure(self, task_try: TaskTry) -> Meta:
        """The meta as far as it can be made: an error in it must not replace the task's own
        failure."""
        try:
            return await self._meta(task_try)
        except Failing:
            return Meta(tool=self._tool(task_try.task))

    def _tool(self, task: Task) -> dict[str, str]:
        return made_with(task.kind, self.env.registry.get(task.kind))

    async def _input(self, task_try: TaskTry) -> Input | None:
        """The input as the envelope records it. None for an item: the loop names its collection."""
        if not self._at.given or self._journal is None or self.names.item is not None:
            return None
        inline = not self._has_text_of_payload(task_try.task)
        return await self.persist.input(self._label(task_try), self._at.given, inline=inline)

    def _label(self, task_try: TaskTry, page: int = 0) -> str:
        """A label that no other put of this attempt has: a task may run and be tried again."""
        label = task_try.task.name
        if task_try.run != 1:
            label = f"{label}.r{task_try.run}"
        if task_try.attempt != 1:
            label = f"{label}.t{task_try.attempt}"
        if page:
            label = f"{label}.p{page}"
        return label

    async def _judged(self, task_try: TaskTry, result: LazyResult) -> tuple[LazyResult, Verdict]:
        """The verdict on a result: first the task's `set`, if it succeeded, then its policy."""
        task = task_try.task
        if result.envelope.ok and task.set:
            try:
                await self._assign(task.set, self._after(task_try, result, "set"))
            except Failing as failing:
                failure = bounded(failing.failure, task=task.name, attempt=task_try.attempt)
                result = LazyResult(failed(failure), self.payloads, None)
        error = result.envelope.error
        if not task.spec.policy.rules:
            if error is None:
                return result, Go()
            return result, Fail(error)
        try:
            return result, await self._verdict(task_try, result)
        except Failing as failing:
            if error is None:
                raise
            return result, Fail(error.followed_by(failing.failure))

    async def _verdict(self, task_try: TaskTry, result: LazyResult) -> Verdict:
        """The verdict of the first matching rule, after its `set`."""
        rendering = self._after(task_try, result, "policy")
        action = await policy.matching(task_try.task.spec.policy.rules, rendering)
        if action is not None and action.set:
            await self._assign(action.set, rendering)
        chance = self._functions(task_try, "jitter").random(0)
        return await policy.verdict(
            action, result.envelope.error, self._at.tries, rendering, chance
        )

    async def _assign(self, values: dict[str, Any], rendering: TaskRendering) -> None:
        """Every value is rendered before the first one is assigned."""
        rendered = {target: await rendering.value(value) for target, value in values.items()}
        for target, value in rendered.items():
            if is_state(target):
                # Events show secrets redacted, so state holds the redacted value from the start.
                value = self.env.redactor.value(value)
            literal = next(templates_in(values[target]), None) is None
            self.names.assign(target, value, literal=literal)

    # ---- again, later ----------------------------------------------------------------------------

    async def _again(
        self, task_try: TaskTry, result: LazyResult, verdict: Again
    ) -> PipelinePause | None:
        """Wait for the next try. Returns a pause if the delay is too long to hold a worker."""
        at, error = self._at, result.envelope.error
        page = 0
        if at.page is not None:
            page = at.page.number
        await self._send(
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
        if verdict.delay > LONGEST_HELD_DELAY and self.command.kind != "frame":
            return PipelinePause(
                task_try.task.name,
                delay=verdict.delay,
                tries=at.tries,
                failure=error,
            )
        if verdict.delay:
            await asyncio.sleep(verdict.delay / 1_000_000)
        return None

    async def _suspended(self, task_try: TaskTry, suspend: Suspend) -> PipelinePause | Ended:
        """The pause that a tool asks for.

        It is a failure without a journal, which could resume it.
        """
        task = task_try.task
        if self._journal is not None:
            if suspend.child is not None:
                suspend = replace(suspend, child=await self._requested(task_try, suspend.child))
            return PipelinePause(task.name, suspend, tries=self._at.tries)
        message = f"{task.kind} waits, which an item can do only when it is alone in its command: set loop.spec.chunk: 1"
        failure = Failure(
            code="CANNOT_WAIT",
            kind="config",
            message=message,
            task=task.name,
        )
        return self._failed(failure, {}, Meta(tool=self._tool(task)))

    async def _requested(self, task_try: TaskTry, child: e.ChildRequest) -> e.ChildRequest:
        """The request as an event carries it.

        An input that is large, or has a text of a payload, goes by reference.
        """
        child = replace(child, iter=await self._told_to_child(task_try.task))
        if _is_small_workload(child.workload) and not self._has_text_of_payload(task_try.task):
            return child
        label = f"{task_try.task.name}.workload"
        wish = StorageWish(store="kv")  # the tier that servers read
        reference = await self.persist.put(label, child.workload, kind="workload", wish=wish)
        return replace(child, workload={}, reference=reference)

    def _has_text_of_payload(self, task: Task) -> bool:
        """Whether the input of the current try has a text that comes from a payload."""
        at = self._at
        if at.of_payload is None:
            origins = Origins(self.command, self.names)
            at.of_payload = origins.has_text_of_payload(self.step, task, at.given)
        return at.of_payload

    def _shows_texts(self, task_try: TaskTry) -> bool:
        """Whether the envelope of the result may show its texts: if none comes from a payload."""
        task = task_try.task
        if task.kind in FETCHING or self._has_text_of_payload(task):
            return False
        if task.kind not in PLACES:
            return True
        place = task.config[PLACES[task.kind]]
        return not Origins(self.command, self.names).reads_payload(self.step, task, place)

    async def _told_to_child(self, task: Task) -> dict[str, Any]:
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
        value = await self.persist.link(f"{task.name}.item", item.value, texts=not of_payload)
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

    async def _pages(self, task_try: TaskTry, prepared: Any) -> Done | Failed | Suspend | Later:
        paginate = task_try.task.spec.paginate
        assert paginate is not None

        async def store_page(number: int, page: Success) -> Failure | None:
            if paginate.sink is None:
                return None
            data, names = pages.sink_data(paginate, page.value)
            task = SinkTask(
                name=task_try.task.name,
                target=paginate.sink.target,
                data=data,
            )
            return await self._sink(task_try, task, number, page, names)

        async def journal_page(
            number: int,
            page: Success,
            cursor: dict[str, Any],
        ) -> None:
            await self._page_done(task_try, number, page, cursor)

        paging = pages.Paging(
            turn=task_try,
            paginate=paginate,
            prepared=prepared,
            call=perform_in_memory,
            key=lambda number: self._caller().key(task_try, number),
            rendering=lambda page: self._after(task_try, self._seen(page), "paginate"),
            sink=store_page,
            journal=None if self._journal is None else journal_page,
        )
        book = self._at.page = await self._book(task_try)
        outcome = await pages.turn_pages(paging, book)
        collect = paginate.collect
        if isinstance(outcome, Done) and collect is not None and collect.into is not None:
            self.names.assign(collect.into, outcome.value["data"])
        return outcome

    def _seen(self, page: Success) -> LazyResult:
        envelope = Envelope(status="ok", context=dict(page.facts))
        return LazyResult(envelope, self.payloads, page.value)

    async def _book(self, task_try: TaskTry) -> pages.Book:
        """The pages that this call has read so far, on this worker or in an earlier attempt."""
        page, paginate = self._at.page, task_try.task.spec.paginate
        assert paginate is not None
        if page is None:
            return pages.Book()
        if isinstance(page, pages.Book):  # of an earlier try on this worker
            return page
        parts: list[AddPart] = []
        if paginate.collect is not None:
            call = call_id(self.command.command_id, task_try.task.name, task_try.run)
            parts = await self.payloads.parts(call)
            parts.sort(key=lambda part: part.first)
        values = [await self.payloads.resolve(part.reference) for part in parts]
        cursor = await self.payloads.unlinked(page.cursor)
        return pages.reopened(paginate, replace(page, cursor=cursor), values)

    async def _page_done(
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
        label = self._label(task_try, number)
        meta = Meta(tool=self._tool(task_try.task))
        wish = StorageWish(None, StorageWish.of(task_try.task.output).lifetime)
        envelope = await self.persist.result(
            label,
            value,
            page.facts,
            meta=meta,
            wish=wish,
            texts=self._shows_texts(task_try),
        )
        carried = await self.persist.cursor(label, cursor)
        await self._send(
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
        self._at.tries = 0

    async def _sink(
        self,
        task_try: TaskTry,
        task: SinkTask,
        number: int,
        page: Success,
        names: dict[str, Any],
    ) -> Failure | None:
        """Run the sink of a page. Returns its failure."""
        page_names = self.names.output(self._seen(page)) | names

        def render_in_page(
            sink_try: TaskTry,
            more: dict[str, Any],
            place: str,
        ) -> TaskRendering:
            return self._rendering(sink_try, {**page_names, **more}, place)

        caller = Caller(self.env, self.command, self.step, self.names, render_in_page)
        prepared = await caller.prepare(TaskTry(task, task_try.run, task_try.attempt))
        page_call = prepared.page(number, {}, caller.key(task_try, number))
        outcome = await perform_in_memory(page_call)
        if isinstance(outcome, Failed):
            return outcome.failure
        return None

    # ---- rendering and reporting -----------------------------------------------------------------

    def _functions(self, task_try: TaskTry, place: str) -> SeededFunctions:
        index = -1
        if self.names.item is not None:
            index = self.names.item.index
        name, run, attempt = task_try.task.name, task_try.run, task_try.attempt
        seed = f"{self.command.command_id}:{index}:{name}:{run}:{attempt}:{place}"
        return SeededFunctions(seed, self.env.clock)

    def _rendering(
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
        scope = partial(self.names.scope, outcome, task, **names)
        where = f"step {self.step.step}, task {task}, {place}"
        return TaskRendering(scope, self.payloads, self._functions(task_try, place), where)

    def _after(
        self,
        task_try: TaskTry,
        result: LazyResult,
        place: str,
    ) -> TaskRendering:
        """The scope for expressions about an outcome: the task's own name means its result."""
        return self._rendering(task_try, {}, place, result)

    async def _send(self, event: Any, *, keep: bool = False) -> None:
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
        values = await self.assigned()
        entry = OutgoingEvent(event(common, values), self.persist.refs())
        await self._journal(entry)
        if keep:
            self.names.writes.changed = {**changed, **self.names.writes.changed}
        fault("journal.after")

    async def assigned(self) -> dict[str, Any]:
        """The assignments since the last journal entry, as events carry them."""
        writes = self.names.writes
        changed, writes.changed = writes.changed, {}
        self._sets += 1
        label = f"set{self._sets}"
        reduced = changed.pop(REDUCED, None)
        values = await self.persist.assigned(label, changed, writes.literal)
        if reduced is not None:
            values[REDUCED] = [
                await self._reduced(f"{label}.r{number}", *write)
                for number, write in enumerate(reduced)
            ]
        return values

    async def _reduced(self, label: str, name: str, value: Any) -> list[Any]:
        """A write with a reducer, as the journal holds it.

        If the reducer makes a list or map, texts go by reference, because the list or map does.
        """
        _, reducer = self.names.writes.reduce[name]
        link = await self.persist.link(label, value, texts=reducer not in GATHERING)
        return [name, link]


def _is_small_workload(workload: dict[str, Any]) -> bool:
    if not all(map(is_scalar, workload.values())):
        return False
    return len(encode(workload)) <= MAX_WORKLOAD_BYTES

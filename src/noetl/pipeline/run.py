"""A step's tasks, once: for one activation, or for one item of a loop.

With a journal (an activation, or an item alone in its command) every task's value is put and its envelope journaled before the
next task starts; a new attempt goes on from there. Without one (items of a chunk) values stay in memory and the chunk reports.
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
from noetl.pipeline.data import MISSING, LazyResult, ResultReader
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
FETCHING = frozenset(
    {"artifact", "http", "nats", "shell"}
)  # these kinds of tools return data of other systems
PLACES = {
    "sink": "target",
    "transfer": "target",
    "spark": "output",
}  # the field of these kinds that results quote
MAX_OUTER_BYTES = 2_048  # that a child is told of the iterations around it
MAX_WORKLOAD_BYTES = 2_048  # of the input of a child that an event carries


class Ended(Struct, frozen=True):
    """`value` is the last good task's; `failure` is set when the pipeline ended badly. `ran` is False when every task was
    passed over."""

    value: LazyResult
    failure: Failure | None = None
    facts: dict[str, Any] = {}
    tries: int = 1
    ran: bool = True
    sinks: tuple[str, ...] = ()
    meta: Meta | None = None  # of the task that failed
    recovered: e.Recovered | None = (
        None  # errors that rules let pass; None of a pipeline that failed after all
    )


class PipelinePause(Struct, frozen=True):
    """The pipeline waits: `suspend` says for what; None is a retry (or a page) after `delay`."""

    task: str
    suspend: Suspend | None = None
    delay: Micros = 0
    tries: int = 0
    failure: Failure | None = None


@dataclass(slots=True)
class Tasks:
    """Where the pipeline stands."""

    goto: int = 0
    runs: dict[str, int] = field(default_factory=dict)
    tries: int = 0  # ended tries of the task at `goto`
    jumps: int = 0
    page: Any = None
    resolved: Envelope | None = None
    given: dict[str, Any] = field(default_factory=dict)  # the input of the try under way
    of_payload: bool | None = None  # whether it has a text of a payload; None: nobody has asked yet


def tasks_of(step: Step) -> list[Task]:
    return list(step.tool) or [NoopTask(name=step.step)]


class Shared(Struct, frozen=True):
    """What the pipelines of all items of one command have in common. A task that is `broken` fails when its turn comes."""

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
            found = called(task, workbook)
            if isinstance(found, Failure):
                broken[task.name] = found
            tasks.append(task if isinstance(found, Failure) else found)
        return cls(
            env,
            command,
            step,
            tuple(tasks),
            broken,
            persist,
            Issued.by(command, payloads, plan.uses.steps),
        )


class Pipeline:
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
        self._behind = behind  # tries that a deferred item has behind it
        self._at = Tasks()
        self._ran = False
        self._most_tries = 1
        self._sinks: list[str] = []
        self._recovered: e.Recovered | None = None
        self._sets = 0
        if journal is not None:
            self._resume(command.journal)

    def _resume(self, journal: Journal) -> None:
        stored = {
            task: LazyResult(envelope, self.payloads) for task, envelope in journal.results.items()
        }
        self.names.tasks = stored
        self.names.prev = (
            LazyResult(journal.prev, self.payloads) if journal.prev is not None else None
        )
        self.names.last = (
            LazyResult(journal.last, self.payloads) if journal.last is not None else None
        )
        self._ran = bool(journal.runs)
        self._recovered = journal.recovered
        self.names.restore(journal.set)
        self._at = Tasks(
            journal.goto,
            dict(journal.runs),
            journal.tries,
            journal.jumps,
            journal.page,
            journal.resolved,
        )

    # ---- the sequence --------------------------------------------------------------------------------------------------

    async def run(self) -> Ended | PipelinePause:
        while self._at.goto < len(self.tasks):
            task = self.tasks[self._at.goto]
            try:
                ended = await self._task(task)
            except Failing as failing:
                return self._failed(
                    bounded(failing.failure, task=task.name), {}, Meta(tool=self._tool(task))
                )
            if ended is not None:
                return ended
        return self._good()

    def _good(self) -> Ended:
        last = self.names.last
        because = last.envelope.why_no_value(failed_call(last)) if last is not None else ""
        value = self.names.prev or nothing(self.payloads, because)
        return Ended(
            value,
            tries=self._most_tries,
            ran=self._ran,
            sinks=tuple(self._sinks),
            recovered=self._recovered,
        )

    def _failed(self, failure: Failure, facts: dict[str, Any], meta: Meta | None) -> Ended:
        value = self.names.prev or nothing(self.payloads)
        tries = max(self._most_tries, self._at.tries)
        return Ended(value, failure, facts, tries=tries, sinks=tuple(self._sinks), meta=meta)

    async def _task(self, task: Task) -> Ended | PipelinePause | None:
        """One task until it has ended for good; None: on with the next."""
        at = self._at
        run = at.runs.get(task.name, 0) + 1
        if at.tries == 0 and self._behind and policy.retries(task):
            at.tries = self._behind
        while True:
            turn = TaskTry(task, run, at.tries + 1)
            outcome = await self._try(turn)
            if outcome is None:
                at.goto += 1
                return None
            if isinstance(outcome, Suspend):
                return await self._suspended(turn, outcome)
            if isinstance(outcome, Later):
                return PipelinePause(task.name, delay=outcome.delay, tries=at.tries)
            at.tries += 1
            self._most_tries = max(self._most_tries, at.tries)
            result = await self._stored(turn, outcome)
            result, verdict = await self._judged(turn, result)
            if isinstance(verdict, Again):
                if (parked := await self._again(turn, result, verdict)) is not None:
                    return parked
                continue
            return await self._settle(turn, result, verdict)

    async def _settle(
        self, turn: TaskTry, result: LazyResult, verdict: Go | Break | Jump | Fail
    ) -> Ended | None:
        """The task has ended: where to go, and the journal entry that says so unless the report will."""
        task, at = turn.task, self._at
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
            failure = bounded(verdict.failure, task=task.name, attempt=turn.attempt)
            return self._failed(failure, result.envelope.context, result.envelope.meta)
        self._note_recovery(task, verdict)
        at.runs[task.name] = turn.run
        at.goto, at.tries, at.page = target, 0, None
        if target >= len(self.tasks):
            return self._good()
        await self._send(
            lambda common, values: e.TaskDone(
                task=task.name,
                run=turn.run,
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
        """A rule lets a failure of the task pass: the execution says so. A retry of a success that is used up is one."""
        error = verdict.let_pass
        if error is None:
            return
        by: Literal["continue", "break", "jump"] = "continue"
        if isinstance(verdict, Break):
            by = "break"
        elif isinstance(verdict, Jump):
            by = "jump"
        found = e.Recovered(
            task=task.name, by=by, code=error.code, message=error.message[:MAX_RECOVERED_MESSAGE]
        )
        self._recovered = found if self._recovered is None else self._recovered.and_then(found)

    def _replace(self, task: str) -> None:
        """A pipeline that goes back for more, again and again, holds the data of its last round alone."""
        former = self.names.tasks.get(task)
        if former is not None and former.envelope.reference is not None:
            self.payloads.drop(former.envelope.reference)

    def _target(self, task: Task, verdict: Verdict) -> int:
        match verdict:
            case Jump(to=to, most=most):
                self._at.jumps += 1
                if self._at.jumps > most:
                    message = f"the pipeline jumped more than {most} times; raise max_jumps if that is meant"
                    raise Failing(
                        Failure(code="JUMP_LIMIT", kind="policy", message=message), final=True
                    )
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

    # ---- one try -------------------------------------------------------------------------------------------------------

    async def _try(self, turn: TaskTry) -> Done | Failed | Suspend | Later | None:
        """None: the task is passed over."""
        at = self._at
        try:
            task, at.given, at.of_payload = turn.task, {}, None
            if task.name in self._broken:
                return Failed(self._broken[task.name])
            if at.resolved is not None:
                at.given = await self._caller().given(turn)
                return self._came()
            fresh = at.tries in (0, self._behind) and at.page is None
            if (
                fresh
                and task.spec.when is not None
                and not await self._rendering(turn, {}, "when").guard(task.spec.when)
            ):
                return None
            prepared = await self._caller().prepare(turn)
            at.given = prepared.call.input
            if task.spec.paginate is not None:
                return await self._pages(turn, prepared)
            outcome = await (perform_in_memory if self._journal is None else perform)(prepared)
            return done(outcome) if isinstance(outcome, Success) else outcome
        except Failing as failing:
            if failing.final:
                raise
            return Failed(failing.failure)

    def _caller(self) -> Caller:
        """Made when it is used: kept, it and the pipeline would hold each other, and all they read, until a collection."""
        return Caller(self.env, self.command, self.step, self.names, self._rendering)

    def _came(self) -> Done | Failed:
        """What the task waited for is its outcome."""
        envelope, self._at.resolved = self._at.resolved, None
        assert envelope is not None
        if not envelope.ok:
            return Failed(
                envelope.error or Failure(code="FAILED", message="what the task waited for failed")
            )
        if envelope.reference is None and not envelope.no_value:
            return Done(envelope.context.get("value"))
        known = {
            name: value
            for name, value in envelope.context.items()
            if name not in (SELECTIONS, "results")
        }
        return Done(stored=LazyResult(replace(envelope, context=known, meta=None), self.payloads))

    async def _stored(self, turn: TaskTry, outcome: Done | Failed) -> LazyResult:
        """The outcome with its envelope; durable when there is a journal."""
        parent = self.names.last.envelope if self.names.last is not None else None
        if isinstance(outcome, Failed):
            failure = bounded(outcome.failure, task=turn.task.name, attempt=turn.attempt)
            failure = await self._with_sample(turn, failure, outcome.sample)
            envelope = failed(failure, **outcome.facts)
            return LazyResult(
                replace(envelope, meta=await self._meta_of_failure(turn)), self.payloads, None
            )
        meta = await self._meta(turn)
        if outcome.stored is not None:
            return LazyResult(replace(outcome.stored.envelope, meta=meta), self.payloads)
        if self._journal is None:
            return LazyResult(
                Envelope(status="ok", context=dict(outcome.facts), meta=meta),
                self.payloads,
                outcome.value,
            )
        envelope = await self.persist.result(
            self._label(turn),
            outcome.value,
            outcome.facts,
            parent=parent,
            meta=meta,
            wish=StorageWish.of(turn.task.output),
            texts=self._shows_texts(turn),
        )
        return LazyResult(
            envelope, self.payloads, MISSING if tables_in(outcome.value) else outcome.value
        )

    async def _with_sample(
        self, turn: TaskTry, failure: Failure, sample: list[dict[str, Any]] | None
    ) -> Failure:
        """With a reference to the sample in its detail. An item of a loop stores none: items share their names."""
        if not sample or self._journal is None or self.names.item is not None:
            return failure
        try:
            reference = await self.persist.put(f"{self._label(turn)}.sample", sample)
        except Failing:
            return failure  # the failure is to be told as it is
        return replace(failure, detail={**failure.detail, SAMPLE: to_builtins(reference)})

    async def _meta(self, turn: TaskTry) -> Meta:
        provenance: dict[str, Any] = {}
        if turn.task.provenance:
            provenance = await self._rendering(turn, {}, "provenance").value(turn.task.provenance)
        return Meta(
            tool=self._tool(turn.task), input=await self._input(turn), provenance=provenance
        )

    async def _meta_of_failure(self, turn: TaskTry) -> Meta:
        """As far as it can be made: the failure is to be told as it is."""
        try:
            return await self._meta(turn)
        except Failing:
            return Meta(tool=self._tool(turn.task))

    def _tool(self, task: Task) -> dict[str, str]:
        return made_with(task.kind, self.env.registry.get(task.kind))

    async def _input(self, turn: TaskTry) -> Input | None:
        """None of an item: a loop names its collection."""
        if not self._at.given or self._journal is None or self.names.item is not None:
            return None
        inline = not self._has_text_of_payload(turn.task)
        return await self.persist.input(self._label(turn), self._at.given, inline=inline)

    def _label(self, turn: TaskTry, page: int = 0) -> str:
        """Distinct for every put of one attempt: a task may run again and be tried again."""
        label = turn.task.name if turn.run == 1 else f"{turn.task.name}.r{turn.run}"
        label = label if turn.attempt == 1 else f"{label}.t{turn.attempt}"
        return label if not page else f"{label}.p{page}"

    async def _judged(self, turn: TaskTry, result: LazyResult) -> tuple[LazyResult, Verdict]:
        """Assignments of a task that went well, then its policy and what the matching rule assigns."""
        task = turn.task
        if result.envelope.ok and task.set:
            try:
                await self._assign(task.set, self._after(turn, result, "set"))
            except Failing as failing:
                failure = bounded(failing.failure, task=task.name, attempt=turn.attempt)
                result = LazyResult(failed(failure), self.payloads, None)
        if not task.spec.policy.rules:
            return result, Go() if result.envelope.error is None else Fail(result.envelope.error)
        try:
            return result, await self._verdict(turn, result)
        except Failing as failing:
            original = result.envelope.error
            if original is None:
                raise
            return result, Fail(original.followed_by(failing.failure))

    async def _verdict(self, turn: TaskTry, result: LazyResult) -> Verdict:
        """What the first matching rule says, after its `set`."""
        rendering = self._after(turn, result, "policy")
        action = await policy.matching(turn.task.spec.policy.rules, rendering)
        if action is not None and action.set:
            await self._assign(action.set, rendering)
        chance = self._functions(turn, "jitter").random(0)
        return await policy.verdict(
            action, result.envelope.error, self._at.tries, rendering, chance
        )

    async def _assign(self, values: dict[str, Any], rendering: TaskRendering) -> None:
        """All of them see the names as they were before the first."""
        rendered = {target: await rendering.value(value) for target, value in values.items()}
        for target, value in rendered.items():
            # a secret is redacted in every event: what is stored would not be what was meant
            kept = self.env.redactor.value(value) if is_state(target) else value
            literal = next(templates_in(values[target]), None) is None
            self.names.assign(target, kept, literal=literal)

    # ---- again, later ----------------------------------------------------------------------------------------------------

    async def _again(
        self, turn: TaskTry, result: LazyResult, verdict: Again
    ) -> PipelinePause | None:
        at, error = self._at, result.envelope.error
        page = at.page.number if at.page is not None else 0
        await self._send(
            lambda common, values: e.RetryStarted(
                task=turn.task.name,
                run=turn.run,
                tries=at.tries,
                error=error,
                page=page,
                delay=verdict.delay,
                set=values,
                **common,
            ),
            keep=True,
        )
        if (
            verdict.delay > LONGEST_HELD_DELAY and self.command.kind != "frame"
        ):  # a frame's item cannot be issued alone
            return PipelinePause(turn.task.name, delay=verdict.delay, tries=at.tries, failure=error)
        if verdict.delay:
            await asyncio.sleep(verdict.delay / 1_000_000)
        return None

    async def _suspended(self, turn: TaskTry, suspend: Suspend) -> PipelinePause | Ended:
        task = turn.task
        if self._journal is not None:
            if suspend.child is not None:
                suspend = replace(suspend, child=await self._requested(turn, suspend.child))
            return PipelinePause(task.name, suspend, tries=self._at.tries)
        message = f"{task.kind} waits, which an item can do only when it is alone in its command: set loop.spec.chunk: 1"
        failure = Failure(code="CANNOT_WAIT", kind="config", message=message, task=task.name)
        return self._failed(failure, {}, Meta(tool=self._tool(task)))

    async def _requested(self, turn: TaskTry, child: e.ChildRequest) -> e.ChildRequest:
        """The request as an event carries it: an input that is large, or has a text of a payload, goes by reference."""
        child = replace(child, iter=await self._told_to_child(turn.task))
        if _is_small_workload(child.workload) and not self._has_text_of_payload(turn.task):
            return child
        label, kept = f"{turn.task.name}.workload", StorageWish(store="kv")  # servers read it
        reference = await self.persist.put(label, child.workload, kind="workload", wish=kept)
        return replace(child, workload={}, reference=reference)

    def _has_text_of_payload(self, task: Task) -> bool:
        """Whether the input of the try under way has a text that comes from a payload."""
        at = self._at
        if at.of_payload is None:
            at.of_payload = Origins(self.command, self.names).has_text_of_payload(
                self.step, task, at.given
            )
        return at.of_payload

    def _shows_texts(self, turn: TaskTry) -> bool:
        """Whether the envelope of the task's result may have texts of it: not when they may be of a payload."""
        task = turn.task
        if task.kind in FETCHING or self._has_text_of_payload(task):
            return False
        if task.kind not in PLACES:
            return True
        return not Origins(self.command, self.names).reads_payload(
            self.step, task, task.config[PLACES[task.kind]]
        )

    async def _told_to_child(self, task: Task) -> dict[str, Any]:
        """This iteration as a child sees it. Events carry it, so an item of a payload goes by reference unless it is a number, a
        boolean or null."""
        outer, item = self.command.scope.outer, self.names.item
        if item is None:
            return outer
        # `collection` is None of a loop over the workload, or over items that `loop.started` lists
        of_payload = self.command.collection is not None or self.command.scope.workload_by_reference
        told = {
            "index": item.index,
            "loop_id": item.loop_id,
            item.iterator: await self.persist.link(
                f"{task.name}.item", item.value, texts=not of_payload
            ),
        }
        with_outer = {**told, "parent": outer} if outer else told
        return with_outer if len(encode(with_outer)) <= MAX_OUTER_BYTES else told

    # ---- pages -----------------------------------------------------------------------------------------------------------

    async def _pages(self, turn: TaskTry, prepared: Any) -> Done | Failed | Suspend | Later:
        paginate = turn.task.spec.paginate
        assert paginate is not None

        async def sink(number: int, page: Success) -> Failure | None:
            if paginate.sink is None:
                return None
            data, names = pages.sink_data(paginate, page.value)
            task = SinkTask(name=turn.task.name, target=paginate.sink.target, data=data)
            return await self._sink(turn, task, number, page, names)

        async def journal(number: int, page: Success, cursor: dict[str, Any]) -> None:
            await self._page_done(turn, number, page, cursor)

        paging = pages.Paging(
            turn=turn,
            paginate=paginate,
            prepared=prepared,
            call=perform_in_memory,
            key=lambda number: self._caller().key(turn, number),
            rendering=lambda page: self._after(turn, self._seen(page), "paginate"),
            sink=sink,
            journal=journal if self._journal is not None else None,
        )
        book = self._at.page = await self._book(turn)
        outcome = await pages.turn_pages(paging, book)
        if (
            isinstance(outcome, Done)
            and paginate.collect is not None
            and paginate.collect.into is not None
        ):
            self.names.assign(paginate.collect.into, outcome.value["data"])
        return outcome

    def _seen(self, page: Success) -> LazyResult:
        return LazyResult(
            Envelope(status="ok", context=dict(page.facts)), self.payloads, page.value
        )

    async def _book(self, turn: TaskTry) -> pages.Book:
        page, paginate = self._at.page, turn.task.spec.paginate
        assert paginate is not None
        if page is None:
            return pages.Book()
        if isinstance(page, pages.Book):  # a try before this one, on this worker
            return page
        parts: list[AddPart] = []
        if paginate.collect is not None:
            parts = await self.payloads.parts(
                call_id(self.command.command_id, turn.task.name, turn.run)
            )
        values = [
            await self.payloads.resolve(part.reference)
            for part in sorted(parts, key=lambda part: part.first)
        ]
        cursor = await self.payloads.unlinked(page.cursor)
        return pages.reopened(paginate, replace(page, cursor=cursor), values)

    async def _page_done(
        self, turn: TaskTry, number: int, page: Success, cursor: dict[str, Any]
    ) -> None:
        value = (
            page.value if page.value is not None else {}
        )  # a page is a part of a manifest: it needs a reference
        meta = Meta(tool=self._tool(turn.task))
        wish = StorageWish(None, StorageWish.of(turn.task.output).lifetime)
        envelope = await self.persist.result(
            self._label(turn, number),
            value,
            page.facts,
            meta=meta,
            wish=wish,
            texts=self._shows_texts(turn),
        )
        carried = await self.persist.cursor(self._label(turn, number), cursor)
        await self._send(
            lambda common, values: e.CallPage(
                task=turn.task.name,
                run=turn.run,
                page=number,
                result=envelope,
                cursor=carried,
                set=values,
                **common,
            )
        )
        self._at.tries = 0

    async def _sink(
        self, turn: TaskTry, task: SinkTask, number: int, page: Success, names: dict[str, Any]
    ) -> Failure | None:
        """A storage task for this page alone."""
        page_names = self.names.output(self._seen(page)) | names
        caller = Caller(
            self.env,
            self.command,
            self.step,
            self.names,
            lambda turn, more, place: self._rendering(turn, {**page_names, **more}, place),
        )
        prepared = await caller.prepare(TaskTry(task, turn.run, turn.attempt))
        outcome = await perform_in_memory(prepared.page(number, {}, caller.key(turn, number)))
        return outcome.failure if isinstance(outcome, Failed) else None

    # ---- rendering and reporting -----------------------------------------------------------------------------------------

    def _functions(self, turn: TaskTry, place: str) -> SeededFunctions:
        index = self.names.item.index if self.names.item is not None else -1
        seed = (
            f"{self.command.command_id}:{index}:{turn.task.name}:{turn.run}:{turn.attempt}:{place}"
        )
        return SeededFunctions(seed, self.env.clock)

    def _rendering(
        self, turn: TaskTry, more: dict[str, Any], place: str, outcome: LazyResult | None = None
    ) -> TaskRendering:
        name = turn.task.name
        scope = partial(
            self.names.scope, outcome, name, **{"_task": name, "_attempt": turn.attempt, **more}
        )
        where = f"step {self.step.step}, task {name}, {place}"
        return TaskRendering(scope, self.payloads, self._functions(turn, place), where)

    def _after(self, turn: TaskTry, result: LazyResult, place: str) -> TaskRendering:
        """The scope of what looks at an outcome: the task's own name is its result already."""
        return self._rendering(turn, {}, place, result)

    async def _send(self, event: Any, *, keep: bool = False) -> None:
        """Journal one entry with what was assigned since the last; returns when it is acknowledged. `keep`: the next entry
        says it again."""
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
        await self._journal(OutgoingEvent(event(common, values), self.persist.refs()))
        if keep:
            self.names.writes.changed = {**changed, **self.names.writes.changed}
        fault("journal.after")

    async def assigned(self) -> dict[str, Any]:
        """What was assigned since the last journal entry, as events carry it."""
        writes = self.names.writes
        changed, writes.changed = writes.changed, {}
        self._sets += 1
        label = f"set{self._sets}"
        reduced = changed.pop(REDUCED, None)
        made = await self.persist.assigned(label, changed, writes.literal)
        if reduced is not None:
            made[REDUCED] = [
                await self._reduced(f"{label}.r{n}", *write) for n, write in enumerate(reduced)
            ]
        return made

    async def _reduced(self, label: str, name: str, value: Any) -> list[Any]:
        """A write with a reducer, as the journal has it. A text that a list or map is made of goes by reference, as those do."""
        _, reducer = self.names.writes.reduce[name]
        return [name, await self.persist.link(label, value, texts=reducer not in GATHERING)]


def _is_small_workload(workload: dict[str, Any]) -> bool:
    return all(map(is_scalar, workload.values())) and len(encode(workload)) <= MAX_WORKLOAD_BYTES

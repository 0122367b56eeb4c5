"""One try of one task: renders its input and config, and runs its tool within its timeout."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from noetl.faults import hit_fault_point
from noetl.model.commands import Command
from noetl.model.errors import Failure, Unavailable
from noetl.model.ids import ExecutionId, Micros, derive_id
from noetl.pipeline.environment import Environment
from noetl.pipeline.failures import TaskFailed
from noetl.pipeline.scope.lazy_results import LazyResult
from noetl.pipeline.scope.names import TemplateScope, describe_failed_call
from noetl.pipeline.scope.origins import TextOrigins
from noetl.pipeline.scope.rendering import TaskRendering
from noetl.pipeline.scope.results import ResultReader, WholeValue
from noetl.pipeline.scope.shared_rows import (
    make_stored_input,
    render_with_stored_rows,
    share_stored_rows,
)
from noetl.pipeline.secrets.redaction import Redactor
from noetl.playbook import durations
from noetl.playbook.merging import merge_deep
from noetl.playbook.model import OutsideTask, SinkTask, Step, Task
from noetl.results.formats.tables import ArrowRecords, EncodedTable, TableOptions, TooManyRows
from noetl.tools.port import (
    Call,
    CallIdentity,
    Failed,
    Outcome,
    PlaybookKey,
    Success,
    Tool,
    raw_fields,
    takes_columns,
)
from noetl.tools.python.child import refuse_equal_keys


class TaskTry(Struct, frozen=True):
    """Identifies a try: the task, the run of the task, and the attempt within the run."""

    task: Task
    run: int
    attempt: int


RenderIn = Callable[[TaskTry, dict[str, Any], str], TaskRendering]
RenderLayer = Callable[[TaskRendering, dict[str, Any]], Awaitable[dict[str, Any]]]


class PreparedCall(Struct, frozen=True):
    """A tool with everything it needs. `for_page` makes the call of the next page.

    With `checks_keys`, the keys of the value are checked, because the tool is not one of ours and
    may return keys that are not text.
    """

    tool: Tool
    call: Call
    redactor: Redactor
    checks_keys: bool = False

    def for_page(
        self,
        number: int,
        cursor: dict[str, Any],
        key: str,
    ) -> "PreparedCall":
        last = {**self.call.config, "input": self.call.input}
        merged: dict[str, Any] = merge_deep(last, cursor)
        page_input = merged.pop("input")
        first_url = None
        if "url" in cursor:
            first_url = str(self.call.config.get("url"))
        if "trusted_origins" in cursor:  # the task says whom it trusts, not the answer
            merged["trusted_origins"] = self.call.config.get("trusted_origins")
        identity = _with_page(self.call.identity, number)
        call = replace(
            self.call,
            config=merged,
            input=page_input,
            key=key,
            identity=identity,
            first_url=first_url,
        )
        return replace(self, call=call)


def _with_page(identity: CallIdentity, page: int) -> CallIdentity:
    return replace(identity, page=page)


@dataclass(slots=True)
class TaskCaller:
    """Prepares and makes the calls of one pipeline."""

    env: Environment
    command: Command
    step: Step
    names: TemplateScope
    rendering: RenderIn
    # Rows may go between the store and the tool as columns, if the tool takes them so.
    allows_columns: bool = False

    async def prepare(self, task_try: TaskTry) -> PreparedCall:
        task = task_try.task
        tool = self.env.registry.get(task.kind)
        if tool is None:
            known = ", ".join(self.env.registry.kinds)
            message = f"this worker has no tool of kind {task.kind!r}; it has {known}; install the package that brings it"
            raise TaskFailed(Failure(code="TOOL_UNAVAILABLE", kind="tool", message=message))
        columns = self.allows_columns and takes_columns(tool)
        task_input = await self.render_input(task_try, columns=columns)
        rendering = self.rendering(task_try, {"input": task_input}, "call")
        config = await self._render_config(task, tool, rendering)
        keychain = self.names.payloads.keychain
        auth = _find_auth(task)
        if auth is not None:
            auth = await keychain.resolve_auth(await rendering.value(auth))
        timeout = None
        if task.timeout is not None:
            timeout = durations.parse_micros(task.timeout)
        if columns:
            task_input = await share_stored_rows(task_input)
        call = Call(
            config=config,
            input=task_input,
            key=self.call_key(task_try, 0),
            identity=self._make_identity(task_try),
            auth=auth,
            timeout=timeout,
            log=self.env.redactor.redact_log(self.env.logs(task.name, self._item_index())),
            progress=self.env.redactor.redact_progress(self.env.progress),
            rendering=rendering,
            secret=keychain.resolve_secret,
            tables=TableOptions(self.env.store.staging, self.env.redactor.redact_rows),
            credential=keychain.resolve_auth,
            columns=columns,
            hidden_url=partial(self._find_hidden_url, task),
            playbook=PlaybookKey(self.command.tenant, self.command.playbook),
            clean_cut=self.env.redactor.drop_cut_secret,
        )
        return PreparedCall(
            tool, call, self.env.redactor, checks_keys=isinstance(task, OutsideTask)
        )

    async def render_input(self, task_try: TaskTry, *, columns: bool = False) -> dict[str, Any]:
        """The task's input. Templates that are rendered later see it too.

        With `columns`, a member that is a stored row set is a StoredInput.
        """
        render = render_with_stored_rows if columns else TaskRendering.value
        self.names.input = await self._merge_inputs(task_try, render, columns=columns)
        return self.names.input

    async def _merge_inputs(
        self, task_try: TaskTry, render: RenderLayer, *, columns: bool
    ) -> dict[str, Any]:
        """The task's own input, under the step's input, under the args of the arc."""
        payloads = self.names.payloads
        merged: dict[str, Any] = {}
        for name, value in self.names.args.items():
            stored = make_stored_input(value, payloads) if columns else None
            merged[name] = stored or await resolve_argument(value, payloads)
        if self.step.input:
            rendering = self.rendering(task_try, {"input": merged}, "step input")
            merged = {**await render(rendering, self.step.input), **merged}
        if not task_try.task.input:
            return dict(merged)
        rendering = self.rendering(task_try, {"input": merged}, "input")
        return {**await render(rendering, task_try.task.input), **merged}

    async def _render_config(
        self,
        task: Task,
        tool: Tool,
        rendering: TaskRendering,
    ) -> dict[str, Any]:
        """The fields of the task, rendered, except those that the tool takes raw."""
        fields = task.options if isinstance(task, OutsideTask) else task.config
        if isinstance(task, SinkTask) and task.data is None:
            self._check_previous_task(task)
            fields = {**fields, "data": "{{ _prev }}"}
        raw = raw_fields(tool)
        config: dict[str, Any] = {}
        for name, value in fields.items():
            if not value or name in raw:  # an empty value renders to itself
                config[name] = value
            else:
                config[name] = await rendering.value(value)
        return config

    def _find_hidden_url(self, task: Task) -> str | None:
        """The template of the task's address, if it reads a payload: then events must not show the
        address."""
        url = getattr(task, "url", None)
        if isinstance(task, SinkTask):
            url = task.target.url
        if not isinstance(url, str):
            return None
        origins = TextOrigins(self.command, self.names)
        if not origins.reads_payload(self.step, task, url):
            return None
        return url

    def _check_previous_task(self, task: SinkTask) -> None:
        """Fail if a sink without `data` has nothing to store: the task before it failed, and a rule
        let the failure pass."""
        last = self.names.last
        if last is None:
            return
        because = last.envelope.explain_no_value(describe_failed_call(last))
        if because:
            message = f"sink {task.name} has nothing to store, because {because}"
            hint = "give it `data`, or a `when` that tests the task before it with `is defined`"
            raise TaskFailed(
                Failure(code="TEMPLATE_UNDEFINED", kind="template", message=f"{message}; {hint}")
            )

    def call_key(self, task_try: TaskTry, page: int) -> str:
        """The same over attempts and tries, so that a sink can recognise a call it has seen."""
        command, item = self.command, self.names.item
        index = -1 if item is None else item.index
        return derive_id(
            "sink",
            command.execution_id,
            command.activation,
            index,
            page,
            task_try.task.name,
            task_try.run,
        )

    def _make_identity(self, task_try: TaskTry) -> CallIdentity:
        return CallIdentity(
            execution_id=ExecutionId(self.command.execution_id),
            step=self.step.step,
            task=task_try.task.name,
            attempt=task_try.attempt,
            index=self._item_index(),
            run=task_try.run,
            lease=self.command.attempt,
        )

    def _item_index(self) -> int | None:
        item = self.names.item
        return None if item is None else item.index


def _find_auth(task: Task) -> Any:
    """The `auth` of a task. That of a sink's target wins."""
    if isinstance(task, SinkTask) and task.target.auth is not None:
        return task.target.auth
    return task.auth


async def resolve_argument(value: Any, payloads: ResultReader) -> Any:
    """The value of an arc's argument. It is data, never a template; a large one is a reference."""
    if not isinstance(value, LazyResult):
        return value
    reference = value.envelope.reference
    if reference is None:
        return value.load_plain()
    await payloads.load(WholeValue(reference))
    return value.load_plain()


async def run_call(prepared: PreparedCall) -> Outcome:
    """Run the tool. After its timeout it is cancelled, and it has ended when this returns."""
    hit_fault_point("tool.before")
    timeout: Micros | None = prepared.call.timeout
    try:
        if timeout is None:
            outcome = await prepared.tool.run(prepared.call)
        else:
            outcome = await _run_within(timeout, prepared)
    except TaskFailed as failing:  # from a raw field that the tool rendered itself
        return Failed(failing.failure)
    except Unavailable as error:  # the tool cannot store its rows, or cannot read its input
        code = "REFERENCE_NOT_AVAILABLE"
        return Failed(
            Failure(
                code=code,
                kind="store",
                message=str(error),
                retryable=True,
            )
        )
    except Exception as error:  # the tool has a bug, and the playbook's author must see where
        message = f"the {prepared.tool.kind} tool raised {type(error).__name__}: {error}"
        failure = Failure(code="TOOL_BROKEN", kind="tool", message=message)
        return prepared.redactor.redact_outcome(Failed(failure))
    hit_fault_point("tool.after")
    if prepared.checks_keys and isinstance(outcome, Success):
        outcome = _check_keys(outcome)
    redactor = prepared.redactor
    if redactor and isinstance(outcome, Success) and isinstance(outcome.value, ArrowRecords):
        return await asyncio.to_thread(redactor.redact_outcome, outcome)
    return redactor.redact_outcome(outcome)


def _check_keys(outcome: Success) -> Outcome:
    """The outcome, or a failure if two keys of a map become the same text."""
    try:
        refuse_equal_keys(outcome.value)
    except ValueError as error:
        message = f"the result is not JSON: {error}"
        return Failed(Failure(code="RESULT_NOT_JSON", kind="tool", message=message))
    return outcome


async def run_call_in_memory(prepared: PreparedCall) -> Outcome:
    """Run the tool for a caller that keeps values in memory: rows become the value that templates
    see. Fails if there are too many rows."""
    outcome = await run_call(prepared)
    if not isinstance(outcome, Success):
        return outcome
    table = outcome.value
    if not isinstance(table, EncodedTable):
        return outcome
    try:
        return Success(await asyncio.to_thread(table.value), outcome.facts)
    except TooManyRows as error:
        return Failed(Failure(code="RESULT_TOO_LARGE", kind="result", message=str(error)))
    finally:
        table.close()


async def _run_within(timeout: Micros, prepared: PreparedCall) -> Outcome:
    seconds = timeout / 1_000_000
    try:
        async with asyncio.timeout(seconds) as timer:
            return await prepared.tool.run(prepared.call)
    except TimeoutError:
        if not timer.expired():  # the tool raised it
            raise
        message = f"{prepared.tool.kind} did not end within {seconds:g} s"
        return Failed(
            Failure(
                code="TIMEOUT",
                kind="timeout",
                message=message,
                retryable=True,
            )
        )


class SuccessfulTry(Struct, frozen=True):
    """A try that succeeded. `stored` is set if its value already has a reference of its own."""

    value: Any = None
    facts: dict[str, Any] = {}
    stored: LazyResult | None = None


def from_success(success: Success) -> SuccessfulTry:
    return SuccessfulTry(success.value, success.facts)

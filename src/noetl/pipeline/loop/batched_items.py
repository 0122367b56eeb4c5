"""Items of a loop with one plain task in its body: no rules, no assignments, only an input.

Such items need no pipeline. Their tool takes many inputs in one call (`ManyTool.run_many`), and
every item ends as its pipeline would end it.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from noetl.faults import hit_fault_point
from noetl.model.errors import Failure
from noetl.pipeline.environment import SeededFunctions
from noetl.pipeline.failures import TaskFailed, failure_from_template_error, limit_failure
from noetl.pipeline.loop.direct_inputs import DirectInputs
from noetl.pipeline.scope.names import LoopItem, ScopeWrites, TemplateScope
from noetl.pipeline.scope.rendering import TaskRendering
from noetl.pipeline.task.calls import resolve_argument
from noetl.pipeline.task.run import SharedPipelineParts
from noetl.playbook.model import SinkTask, Task
from noetl.template.errors import LimitError, NeedsData, TemplateError
from noetl.template.limits import EVENT_LOOP_LIMITS, WORKER_LIMITS
from noetl.template.parsing import parse_texts
from noetl.template.rendering import Renderer
from noetl.tools.port import (
    Failed,
    ManyTool,
    OutcomeListener,
    PlaybookKey,
    Success,
    is_many_tool,
    raw_fields,
)

INPUTS_PER_TURN = 256  # inputs that are rendered before other commands get a turn

# Called with the position of an item, its value or failure, the seconds spent on it, and how many
# items ran at the same time.
ItemListener = Callable[[int, Any, float, int], None]


class BatchedItems:
    """What all items of one command share."""

    def __init__(
        self,
        shared: SharedPipelineParts,
        task: Task,
        tool: ManyTool,
        writes: ScopeWrites,
        now: str,
    ) -> None:
        self._shared = shared
        self._task = task
        self._tool = tool
        self._names = TemplateScope(shared.issued, writes, None, now, journaled=False)
        self._scope = self._names.make_scope(None, task.name, _task=task.name, _attempt=1)
        self._args: dict[str, Any] | None = None
        self._step_input = parse_texts(shared.step.input)
        self._task_input = parse_texts(task.input)
        self._direct: DirectInputs | None = None

    @classmethod
    def from_shared(
        cls,
        shared: SharedPipelineParts,
        writes: ScopeWrites,
        now: str,
    ) -> "BatchedItems | None":
        """None if an item of this step is more than one plain call."""
        if len(shared.tasks) != 1 or shared.broken or shared.command.attempts:
            return None
        (task,) = shared.tasks
        tool = shared.env.registry.get(task.kind)
        if not is_many_tool(tool) or not _is_plain_task(task):
            return None
        raw = raw_fields(tool)
        if any(value and name not in raw for name, value in task.config.items()):
            return None
        try:
            return cls(shared, task, tool, writes, now)
        except TemplateError:  # the pipeline reports it when it renders the input
            return None

    async def run_items(
        self,
        items: list[LoopItem],
        listener: ItemListener,
        at_once: int = 1,
        *,
        stop: bool = False,
    ) -> None:
        """Run the items in one call of the tool, `at_once` at a time.

        Passes the value or the failure of each item to the listener as soon as it has it. With
        `stop`, items that had not begun when one failed do not run.
        """
        if len(items) > 1:
            self._direct = self._compile_direct_inputs()
        inputs, seconds = await self._make_inputs(items, stop=stop)
        rendering_s = seconds / len(items)
        ready: list[int] = []
        ready_inputs: list[dict[str, Any]] = []
        for number, task_input in enumerate(inputs):
            if isinstance(task_input, Failure):
                listener(number, task_input, rendering_s, 1)
            else:
                ready.append(number)
                ready_inputs.append(task_input)
        if not ready:
            return
        redact = self._shared.env.redactor.redact_outcome

        def pass_outcome(nth: int, outcome: Success | Failed, ran_s: float, running: int) -> None:
            outcome = redact(outcome)
            if isinstance(outcome, Success):
                value = outcome.value
            else:
                value = self._limit_failure(outcome.failure)
            listener(ready[nth], value, rendering_s + ran_s, running)

        hit_fault_point("tool.before")
        await self._call_tool(
            ready_inputs,
            [items[number].index for number in ready],
            pass_outcome,
            at_once,
            stop,
        )
        hit_fault_point("tool.after")

    async def _call_tool(
        self,
        inputs: list[dict[str, Any]],
        indexes: list[int],
        listener: OutcomeListener,
        at_once: int,
        stop: bool,
    ) -> None:
        env, task, command = self._shared.env, self._task, self._shared.command
        try:
            await self._tool.run_many(
                task.config,
                inputs,
                lambda nth: env.redactor.redact_log(env.logs(task.name, indexes[nth])),
                listener,
                at_once=at_once,
                stop=stop,
                playbook=PlaybookKey(command.tenant, command.playbook),
            )
        except Exception as error:  # the tool has a bug, and the playbook's author must see where
            message = f"the {self._tool.kind} tool raised {type(error).__name__}: {error}"
            failed = Failed(Failure(code="TOOL_BROKEN", kind="tool", message=message))
            for nth in range(len(inputs)):
                listener(nth, failed, 0.0, 1)

    def _limit_failure(self, failure: Failure) -> Failure:
        return limit_failure(failure, task=self._task.name, attempt=1)

    # ---- the input -------------------------------------------------------------------------------

    def _compile_direct_inputs(self) -> DirectInputs | None:
        """None if every input has to be rendered."""
        loop = self._shared.step.loop
        if loop is None or self._step_input:
            return None
        return DirectInputs.from_template(self._task_input, loop.iterator)

    async def _make_inputs(
        self, items: list[LoopItem], *, stop: bool
    ) -> tuple[list[dict[str, Any] | Failure], float]:
        """The input of each item or the failure to render it, and the seconds that this took.

        With `stop`, the first failure is the last that is returned.
        """
        clock = asyncio.get_running_loop().time
        inputs: list[dict[str, Any] | Failure] = []
        seconds = 0.0
        for start in range(0, len(items), INPUTS_PER_TURN):
            if start:
                await asyncio.sleep(0)
            began = clock()
            inputs += await self._make_some_inputs(items[start : start + INPUTS_PER_TURN])
            seconds += clock() - began
            if stop and _drop_after_failure(inputs):
                break
        return inputs, seconds

    async def _make_some_inputs(self, items: list[LoopItem]) -> list[dict[str, Any] | Failure]:
        direct = self._direct
        if direct is None:
            return [await self._render_input(item) for item in items]
        if direct.rendered is None:
            await self._render_input(items[0])
        inputs: list[Any] = []
        for task_input, item in zip(direct.make_inputs(items), items, strict=True):
            if task_input and self._args:
                task_input = {**task_input, **self._args}
            inputs.append(task_input or await self._render_input(item))
        return inputs

    async def _render_input(self, item: LoopItem) -> dict[str, Any] | Failure:
        try:
            if self._args is None:
                args: dict[str, Any] = {}
                for name, value in self._names.args.items():
                    args[name] = await resolve_argument(value, self._names.payloads)
                self._args = args
            merged = self._args
            if self._step_input:
                step_input = await self._render_template(
                    item, self._step_input, self._names.args, "step input"
                )
                merged = {**step_input, **merged}
            if not self._task_input:
                return dict(merged)
            task_input = await self._render_template(item, self._task_input, merged, "input")
            if self._direct is not None:
                self._direct.set_rendered(task_input)
            return {**task_input, **merged}
        except TaskFailed as failing:
            return self._limit_failure(failing.failure)

    async def _render_template(
        self,
        item: LoopItem,
        template: dict[str, Any],
        task_input: dict[str, Any],
        place: str,
    ) -> dict[str, Any]:
        command, task = self._shared.command, self._task.name
        scope = {
            **self._scope,
            **item.make_names(self._names.outer),
            "input": task_input,
            "args": task_input,
        }
        functions = SeededFunctions(
            f"{command.command_id}:{item.index}:{task}:1:1:{place}", self._shared.env.clock
        )
        rendered: dict[str, Any]
        try:
            rendered = Renderer(EVENT_LOOP_LIMITS, functions).render_value(template, scope)
        except (NeedsData, LimitError):  # load the data, or render in a thread
            where = f"step {command.step}, task {task}, {place}"
            renderer = Renderer(WORKER_LIMITS, functions)
            rendering = TaskRendering(lambda: scope, self._names.payloads, renderer, where)
            rendered = await rendering.value(template)
        except TemplateError as error:
            where = f"step {command.step}, task {task}, {place}"
            raise TaskFailed(failure_from_template_error(error, where)) from error
        return rendered


def _drop_after_failure(inputs: list[Any]) -> bool:
    """Drop what comes after the first failure. False if there is none."""
    for number, task_input in enumerate(inputs):
        if isinstance(task_input, Failure):
            del inputs[number + 1 :]
            return True
    return False


def _is_plain_task(task: Task) -> bool:
    """Whether the task is one call without rules, assignments, `auth`, timeout or provenance."""
    spec = task.spec
    if isinstance(task, SinkTask) or task.set or task.provenance:
        return False
    if task.auth is not None or task.timeout is not None:
        return False
    return spec.when is None and spec.paginate is None and not spec.policy.rules

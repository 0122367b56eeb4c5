"""Items of a loop whose body is one plain task: no rule looks at it, nothing is assigned, only its input is rendered.

Such items need no pipeline each. Their tool takes many inputs in one call (`Tool.run_many`), and every item ends as its pipeline
would have ended it.
"""

import asyncio
from typing import Any, Final

from noetl.faults import fault
from noetl.model.errors import Failure
from noetl.pipeline.calls import input_of
from noetl.pipeline.direct import Direct
from noetl.pipeline.environment import SeededFunctions
from noetl.pipeline.failures import Failing, bounded, template_failure
from noetl.pipeline.names import LoopItem, ScopeWrites, TemplateScope
from noetl.pipeline.rendering import TaskRendering
from noetl.pipeline.run import Shared
from noetl.playbook import templates
from noetl.playbook.expressions import WORKER_LIMITS, NeedsData, TemplateError
from noetl.playbook.model import SinkTask, Task
from noetl.tools.port import BatchOutcome, Failed, ManyTool, Success, raw_fields

NOT_RUN: Final = object()


class BatchedItems:
    """What all items of one command have in common."""

    def __init__(
        self, shared: Shared, task: Task, tool: ManyTool, writes: ScopeWrites, now: str
    ) -> None:
        self._shared = shared
        self._task = task
        self._tool = tool
        self._names = TemplateScope(shared.issued, writes, None, now, journaled=False)
        self._scope = self._names.scope(None, task.name, _task=task.name, _attempt=1)
        self._args: dict[str, Any] | None = None
        self._step_input = templates.parsed(shared.step.input)
        self._task_input = templates.parsed(task.input)
        loop = shared.step.loop
        self._direct = (
            None if loop is None or self._step_input else Direct.of(self._task_input, loop.iterator)
        )

    @classmethod
    def of(cls, shared: Shared, writes: ScopeWrites, now: str) -> "BatchedItems | None":
        """None: an item of this step is more than one call."""
        if len(shared.tasks) != 1 or shared.broken or shared.command.attempts:
            return None
        (task,) = shared.tasks
        tool = shared.env.registry.get(task.kind)
        if not isinstance(tool, ManyTool) or isinstance(task, SinkTask):
            return None
        spec = task.spec
        rules = spec.when is not None or spec.paginate is not None or spec.policy.rules
        if (
            rules
            or task.set
            or task.auth is not None
            or task.timeout is not None
            or task.provenance
        ):
            return None
        if any(value and name not in raw_fields(tool) for name, value in task.config.items()):
            return None
        try:
            return cls(shared, task, tool, writes, now)
        except TemplateError:  # told when it is rendered
            return None

    async def run(
        self, items: list[LoopItem], at_once: int = 1, *, stop: bool = False
    ) -> tuple[list[Failure | Any], float]:
        """The value of each, or its failure; and the seconds that they were worked on. So many run at once. `stop`: NOT_RUN of
        those that had not begun when one failed; of all after it, if one runs at a time."""
        clock = asyncio.get_running_loop().time
        began = clock()
        ended = await self._inputs(items)
        strict = stop and at_once == 1
        if strict:
            _end_at_failure(ended)
        rendered = clock() - began
        ready = [
            number
            for number, given in enumerate(ended)
            if given is not NOT_RUN and not isinstance(given, Failure)
        ]
        if not ready:
            return ended, rendered
        fault("tool.before")
        ran = await self._call(
            [ended[number] for number in ready],
            [items[number].index for number in ready],
            at_once,
            stop,
        )
        fault("tool.after")
        clean = self._shared.env.redactor.outcome
        for number, told in zip(ready, ran.outcomes, strict=True):
            outcome = None if told is None else clean(told)
            if isinstance(outcome, Success):
                ended[number] = outcome.value
            else:
                ended[number] = NOT_RUN if outcome is None else self._failed(outcome.failure)
        if strict:
            _end_at_failure(ended)
        return ended, rendered + ran.seconds

    async def _call(
        self, given: list[dict[str, Any]], indexes: list[int], at_once: int, stop: bool
    ) -> BatchOutcome:
        env, task = self._shared.env, self._task
        try:
            return await self._tool.run_many(
                task.config,
                given,
                lambda nth: env.redactor.log(env.logs(task.name, indexes[nth])),
                at_once=at_once,
                stop=stop,
            )
        except (
            Exception
        ) as error:  # a tool that raises is broken, but the playbook's author must see where
            message = f"the {self._tool.kind} tool raised {type(error).__name__}: {error}"
            return BatchOutcome(
                [Failed(Failure(code="TOOL_BROKEN", kind="tool", message=message))] * len(given),
                0.0,
            )

    def _failed(self, failure: Failure) -> Failure:
        return bounded(failure, task=self._task.name, attempt=1)

    # ---- the input ---------------------------------------------------------------------------------------------------------

    async def _inputs(self, items: list[LoopItem]) -> list[Any]:
        direct = self._direct
        if direct is None:
            return [await self._input(item) for item in items]
        if direct.rendered is None:
            await self._input(items[0])
        given = direct.inputs(items)
        if self._args:
            given = [each and {**each, **self._args} for each in given]
        return [each or await self._input(item) for each, item in zip(given, items, strict=True)]

    async def _input(self, item: LoopItem) -> dict[str, Any] | Failure:
        try:
            if self._args is None:
                self._args = {
                    name: await input_of(value, self._names.payloads)
                    for name, value in self._names.args.items()
                }
            merged = self._args
            if self._step_input:
                merged = {
                    **await self._rendered(item, self._step_input, self._names.args, "step input"),
                    **merged,
                }
            if not self._task_input:
                return dict(merged)
            made = await self._rendered(item, self._task_input, merged, "input")
            if self._direct is not None:
                self._direct.learn(made)
            return {**made, **merged}
        except Failing as failing:
            return self._failed(failing.failure)

    async def _rendered(
        self, item: LoopItem, template: dict[str, Any], given: dict[str, Any], place: str
    ) -> dict[str, Any]:
        command, task = self._shared.command, self._task.name
        scope = {**self._scope, **item.names(self._names.outer), "input": given, "args": given}
        functions = SeededFunctions(
            f"{command.command_id}:{item.index}:{task}:1:1:{place}", self._shared.env.clock
        )
        try:
            made: dict[str, Any] = templates.render_value(
                template, scope, limits=WORKER_LIMITS, functions=functions
            )
            return made
        except NeedsData:  # loaded, and rendered again
            where = f"step {command.step}, task {task}, {place}"
            made = await TaskRendering(lambda: scope, self._names.payloads, functions, where).value(
                template
            )
            return made
        except TemplateError as error:
            raise Failing(
                template_failure(error, f"step {command.step}, task {task}, {place}")
            ) from error


def _end_at_failure(ended: list[Any]) -> None:
    first = next(
        (number for number, each in enumerate(ended) if isinstance(each, Failure)), len(ended)
    )
    ended[first + 1 :] = [NOT_RUN] * len(ended[first + 1 :])

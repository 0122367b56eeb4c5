"""Finds out where the values of an input come from, as far as its templates show.

An event may carry a text that stands in the playbook, in the workload, or in a scalar variable,
because the log already has it. A text of a result, of a loop's item or of a stored variable comes
from a payload and stays in the result store.
"""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from noetl.model.commands import Command
from noetl.model.envelope import is_scalar
from noetl.pipeline.scope.names import TemplateScope
from noetl.playbook.model import Step, Task
from noetl.playbook.plan import find_templates
from noetl.template.model import Template
from noetl.template.scopes import IDENTITY_NAMES
from noetl.template.used_names import Path, find_paths

# Texts under these names are in the log already, or are redacted (`keychain`).
NAMES_IN_LOG = IDENTITY_NAMES | {"state", "event", "keychain", "_task", "_attempt"}


class TextOrigins(Struct, frozen=True):
    """The origins of the texts in one pipeline."""

    command: Command
    names: TemplateScope

    def has_text_of_payload(
        self,
        step: Step,
        task: Task,
        task_input: dict[str, Any],
    ) -> bool:
        """Whether `task_input` has a text that comes, or may come, from a payload."""
        texts = [name for name, value in task_input.items() if may_hold_text(value)]
        if not texts:
            return False
        written = (step.input, task.input)  # the step's wins over the task's
        return not all(self._is_in_log(name, written) for name in texts)

    def reads_payload(self, step: Step, task: Task, value: Any) -> bool:
        """Whether a template in `value`, a field of the task, reads a payload."""
        written = (step.input, task.input)
        for template in find_templates(value):
            for path in find_paths(template):
                if not self._path_is_in_log(path, written) and not self._is_item_in_log(path):
                    return True
        return False

    def _is_item_in_log(self, path: Path) -> bool:
        """Whether the path is the item of a loop over the workload, or over items that
        `loop.started` lists."""
        command, item = self.command, self.names.item
        if item is None or path[0] != item.iterator or command.scope.workload_by_reference:
            return False
        return command.kind == "chunk" and command.collection is None

    def _is_in_log(self, name: str, written: Sequence[dict[str, Any]]) -> bool:
        if name in self.names.args:  # the event that chose the arc has it
            return True
        for number, layer in enumerate(written):
            if name in layer:
                # In these templates, `input` is what wins over them.
                above = written[:number]
                return all(
                    self._reads_log(template, above) for template in find_templates(layer[name])
                )
        return False  # a template made the name

    def _reads_log(self, template: Template, above: Sequence[dict[str, Any]]) -> bool:
        return all(self._path_is_in_log(path, above) for path in find_paths(template))

    def _path_is_in_log(self, path: Path, above: Sequence[dict[str, Any]]) -> bool:
        root, members = str(path[0]), path[1:]
        if root in ("input", "args"):
            if not members or not isinstance(members[0], str):
                return False
            return self._is_in_log(members[0], above)
        if root in ("ctx", "vars"):
            return bool(members) and self._is_scalar_variable(str(members[0]))
        if root in NAMES_IN_LOG:
            return True
        return self._is_of_workload(root) and not self.command.scope.workload_by_reference

    def _is_scalar_variable(self, name: str) -> bool:
        ctx = self.names.writes.ctx
        return name in ctx and is_scalar(ctx[name])

    def _is_of_workload(self, root: str) -> bool:
        """Whether the name is `workload`, or a key of it that no iterator, task or step hides."""
        if root == "workload":
            return True
        scope, item = self.command.scope, self.names.item
        if item is not None and root == item.iterator:
            return False
        if root in self.names.tasks or root in scope.results:
            return False
        return root in scope.workload


def may_hold_text(value: Any) -> bool:
    """Whether the value is, or may hold, a text.

    Numbers, booleans and null may stand in any event.
    """
    return value is not None and not isinstance(value, bool | int | float)

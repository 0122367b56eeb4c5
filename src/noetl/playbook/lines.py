"""The lines of a playbook's text at which its steps, arcs, admission rules and code stand.

Lines count from 1. A short form (`next: report`) has the line at which it is written.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from noetl.playbook import dialect
from noetl.playbook.dialect.editor import Editor, Node, get_text_member, list_maps
from noetl.playbook.text import Map, read_document
from noetl.playbook.validation.document_facts import get_child


@dataclass(frozen=True, slots=True)
class CodeLines:
    """Where the code of a task stands: its first line in the text, and how many lines it has there.
    Code that is folded or escaped has no lines of its own, and counts as one."""

    task: str | None
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class StepLines:
    """The line of a step, the lines of its arcs and admission rules in document order, and those of
    the code of its tasks."""

    line: int
    arcs: tuple[int, ...] = field(default=())
    admit_rules: tuple[int, ...] = field(default=())
    codes: tuple[CodeLines, ...] = field(default=())

    def find_code_line(self, task: str | None, number: int) -> int | None:
        """The line of the text that has this line of a task's code. Without a task, of the only code
        that the step has."""
        codes = [code for code in self.codes if task is None or code.task == task]
        if len(codes) != 1:
            return None
        (code,) = codes
        return code.first + min(max(number, 1), code.count) - 1

    def get_arc_line(self, number: int) -> int | None:
        return self.arcs[number] if number < len(self.arcs) else None

    def get_rule_line(self, number: int) -> int | None:
        return self.admit_rules[number] if number < len(self.admit_rules) else None


def find_step_lines(source: str) -> dict[str, StepLines]:
    """The lines by step. Empty if the text cannot be read."""
    document = read_document(source).data
    if not isinstance(document, Map):
        return {}
    editor = Editor()
    text = source.splitlines()
    dialect.rewrite(document, editor)
    dialect.expand(document, editor)
    lines: dict[str, StepLines] = {}
    for step in list_maps(document.get("workflow")):
        name = get_text_member(step, "step")
        if name is not None:
            lines[name] = _read_lines(step, editor, text)
    return lines


def _read_lines(step: Node, editor: Editor, text: list[str]) -> StepLines:
    arcs = list_maps(get_child(step, "next").get("arcs"))
    rules = list_maps(get_child(step, "spec", "policy", "admit").get("rules"))
    return StepLines(
        editor.get_mark(step, "step").line,
        tuple(editor.get_mark(arc).line for arc in arcs),
        tuple(editor.get_mark(rule).line for rule in rules),
        tuple(_list_code_lines(step, editor, text)),
    )


def _list_code_lines(step: Node, editor: Editor, text: list[str]) -> Iterator[CodeLines]:
    """The code of tasks that stands in the text line by line, or else in the line of its key."""
    for task in list_maps(step.get("tool")):
        code = get_text_member(task, "code")
        if code is None:
            continue
        name = get_text_member(task, "name")
        lines = [line.strip() for line in code.splitlines()]
        key = editor.get_mark(task, "code").line
        block = [line.strip() for line in text[key : key + len(lines)]]
        is_block = block == lines
        yield CodeLines(name, key + 1, len(lines)) if is_block else CodeLines(name, key, 1)

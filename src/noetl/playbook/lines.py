"""The lines of a playbook's text at which its steps, arcs and admission rules stand.

Lines count from 1. A short form (`next: report`) has the line at which it is written.
"""

from dataclasses import dataclass, field

from noetl.playbook import dialect
from noetl.playbook.dialect.editor import Editor, Node, get_text_member, list_maps
from noetl.playbook.text import Map, read_document
from noetl.playbook.validation.document_facts import get_child


@dataclass(frozen=True, slots=True)
class StepLines:
    """The line of a step, and the lines of its arcs and admission rules in document order."""

    line: int
    arcs: tuple[int, ...] = field(default=())
    admit_rules: tuple[int, ...] = field(default=())

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
    dialect.rewrite(document, editor)
    dialect.expand(document, editor)
    lines: dict[str, StepLines] = {}
    for step in list_maps(document.get("workflow")):
        name = get_text_member(step, "step")
        if name is not None:
            lines[name] = _read_lines(step, editor)
    return lines


def _read_lines(step: Node, editor: Editor) -> StepLines:
    arcs = list_maps(get_child(step, "next").get("arcs"))
    rules = list_maps(get_child(step, "spec", "policy", "admit").get("rules"))
    return StepLines(
        editor.get_mark(step, "step").line,
        tuple(editor.get_mark(arc).line for arc in arcs),
        tuple(editor.get_mark(rule).line for rule in rules),
    )

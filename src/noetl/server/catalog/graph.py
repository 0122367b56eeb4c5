"""The graph of a playbook's text: its steps and arcs, with the lines at which they stand. Pure."""

from collections.abc import Iterator
from typing import Any

from noetl.catalog.port import CatalogEntry
from noetl.playbook.lines import StepLines, find_step_lines
from noetl.playbook.model import Step
from noetl.playbook.validation import load_registered
from noetl.server.catalog.views import GraphArcView, GraphSkipView, GraphStepView, GraphView

_NO_LINES = StepLines(0)


def make_graph_view(entry: CatalogEntry) -> GraphView:
    playbook = load_registered(entry.text, file=entry.path)
    lines = find_step_lines(entry.text)
    final = playbook.executor.spec.final_step
    steps: list[GraphStepView] = []
    arcs: list[GraphArcView] = []
    skips: list[GraphSkipView] = []
    for step in playbook.workflow:
        found = lines.get(step.step, _NO_LINES)
        steps.append(_make_step_view(step, found, playbook.entry_step, final))
        arcs += _list_arc_views(step, found)
        skips += _list_skip_views(step, found)
    return GraphView(entry.hash, entry.path, steps, arcs, skips)


def _make_step_view(step: Step, lines: StepLines, entry: str, final: str | None) -> GraphStepView:
    return GraphStepView(
        name=step.step,
        kinds=list(dict.fromkeys(task.kind for task in step.tool)),
        loop=step.loop is not None,
        line=lines.line or None,
        entry=step.step == entry,
        final=step.step == final,
    )


def _list_arc_views(step: Step, lines: StepLines) -> Iterator[GraphArcView]:
    if step.next is None:
        return
    is_exclusive = step.next.spec.mode == "exclusive"
    for number, arc in enumerate(step.next.arcs):
        is_open = arc.when is None or arc.when is True
        yield GraphArcView(
            id=f"{step.step}:{number}",
            source=step.step,
            target=arc.step,
            when=_write_guard(arc.when),
            line=lines.get_arc_line(number),
            is_else=is_exclusive and is_open and number > 0,
        )


def _write_guard(guard: Any) -> str | None:
    if guard is None:
        return None
    if isinstance(guard, bool):
        return str(guard).lower()
    return str(guard)


def _list_skip_views(step: Step, lines: StepLines) -> Iterator[GraphSkipView]:
    admit = step.spec.policy.admit
    if admit is None:
        return
    for number, rule in enumerate(admit.rules):
        if rule.then.next is not None and not rule.then.allow:
            yield GraphSkipView(
                source=step.step,
                target=rule.then.next,
                rule=number,
                line=lines.get_rule_line(number),
                when=None if rule.when is True else _write_guard(rule.when),
            )

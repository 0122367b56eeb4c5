"""Draws the steps and arcs of a playbook as text: a tree for terminals, Mermaid for documents."""

from collections.abc import Iterator

from noetl.playbook.model import Arc, Playbook, Step


def draw_tree(playbook: Playbook) -> str:
    """Draw every step once, where it is first reached from the entry. Later arcs to it show ↑."""
    steps = {step.step: step for step in playbook.workflow}
    lines = [f"{playbook.metadata.name}"]
    seen: set[str] = set()
    final = playbook.executor.spec.final_step
    entry_note = " (final)" if playbook.entry_step == final else ""
    lines.extend(_draw_branch(playbook.entry_step, "", "", steps, seen, note=entry_note))
    if final is not None:
        lines.extend(_draw_branch(final, "", "", steps, seen, note=" (final)"))
    for name in steps:
        if name not in seen:
            lines.extend(_draw_branch(name, "", "", steps, seen, note=" (unreachable)"))
    return "\n".join(lines) + "\n"


def _draw_branch(
    name: str,
    lead: str,
    label: str,
    steps: dict[str, Step],
    seen: set[str],
    note: str = "",
) -> Iterator[str]:
    """Yield the lines of a step and all steps below it.

    Not recursive, so that chains may be long.
    """
    waiting = [(name, lead, "", label, note)]
    while waiting:
        name, lead, elbow, label, note = waiting.pop()
        line = f"{lead}{elbow}{label}{name}"
        step = steps.get(name)
        if step is None:
            yield f"{line} ?"
            continue
        if name in seen:
            yield f"{line} ↑"
            continue
        seen.add(name)
        yield f"{line}{_describe_tasks(step)}{note}"
        outgoing = list(_list_outgoing(step))
        below = lead + {"": "", "├─ ": "│  ", "└─ ": "   "}[elbow]
        is_only_arc = len(outgoing) == 1 and not outgoing[0][1]
        corner = "└─ "  # of the last arc, which is pushed first
        for target, condition in reversed(outgoing):
            if is_only_arc and elbow in ("", "└─ ") and target not in seen:
                waiting.append((target, lead, elbow and "└─ ", "→ ", ""))
            else:
                arc_label = f"[{condition}] " if condition else ""
                waiting.append((target, below, corner, arc_label, ""))
            corner = "├─ "


def _list_outgoing(step: Step) -> Iterator[tuple[str, str]]:
    """Yield target and condition of each arc, and of each rule that skips the step."""
    if step.next is not None:
        for arc in step.next.arcs:
            yield arc.step, _describe_condition(arc)
    admit = step.spec.policy.admit
    if admit is not None:
        for rule in admit.rules:
            if rule.then.next:
                yield rule.then.next, "skipped"


def _describe_condition(arc: Arc) -> str:
    if arc.when is None or arc.when is True:
        return ""
    expression = str(arc.when).replace("{{", "").replace("}}", "")
    text = " ".join(expression.split())
    if len(text) > 60:
        return text[:59] + "…"
    return text


def _describe_tasks(step: Step) -> str:
    kinds = ", ".join(task.kind for task in step.tool)
    loop = f" ↻ {step.loop.spec.mode}" if step.loop else ""
    fork = " ⑂" if step.next and step.next.spec.mode == "inclusive" else ""
    return f" ({kinds or 'noop'}){loop}{fork}"


def draw_mermaid(playbook: Playbook) -> str:
    """Draw a Mermaid flowchart. Guards are edge labels; loops have rounded boxes."""
    ids = {step.step: f"s{index}" for index, step in enumerate(playbook.workflow)}
    lines = ["flowchart TD"]
    for step in playbook.workflow:
        kinds = ", ".join(task.kind for task in step.tool) or "noop"
        label = f"{_escape_mermaid(step.step)}<br/><small>{_escape_mermaid(kinds)}</small>"
        box = f'["{label}"]'
        if step.loop is not None:
            box = f"({box})"
        lines.append(f"    {ids[step.step]}{box}")
    for step in playbook.workflow:
        for target, condition in _list_outgoing(step):
            edge = f'-->|"{_escape_mermaid(condition)}"|' if condition else "-->"
            lines.append(f"    {ids[step.step]} {edge} {ids[target]}")
    lines.append(f"    entry(( )) --> {ids[playbook.entry_step]}")
    return "\n".join(lines) + "\n"


def _escape_mermaid(text: str) -> str:
    for character, entity in (
        ("&", "#amp;"),
        ('"', "#quot;"),
        ("<", "#lt;"),
        (">", "#gt;"),
        ("|", "#124;"),
    ):
        text = text.replace(character, entity)
    return text

"""Steps and arcs as pictures made of text: a tree for terminals, Mermaid for documents."""

from collections.abc import Iterator

from noetl.playbook.model import Arc, Playbook, Step


def tree(playbook: Playbook) -> str:
    """Every step once, where it is first reached from the entry; later arrivals refer to it with ↑."""
    steps = {step.step: step for step in playbook.workflow}
    lines = [f"{playbook.metadata.name}"]
    seen: set[str] = set()
    roots = [playbook.entry]
    if (final := playbook.executor.spec.final_step) is not None:
        roots.append(final)
    for root in roots:
        lines.extend(_branch(root, "", "", steps, seen, note=" (final)" if root == final else ""))
    for name in steps:
        if name not in seen:
            lines.extend(_branch(name, "", "", steps, seen, note=" (unreachable)"))
    return "\n".join(lines) + "\n"


def _branch(
    name: str, lead: str, label: str, steps: dict[str, Step], seen: set[str], note: str = ""
) -> Iterator[str]:
    """Depth first without recursion, so that a long chain is no problem."""
    waiting = [(name, lead, "", label, note)]
    while waiting:
        name, lead, elbow, label, note = waiting.pop()
        step = steps.get(name)
        if step is None or name in seen:
            yield f"{lead}{elbow}{label}{name}{' ↑' if step else ' ?'}"
            continue
        seen.add(name)
        yield f"{lead}{elbow}{label}{name}{_kinds(step)}{note}"
        outgoing = list(_outgoing(step))
        below = lead + {"": "", "├─ ": "│  ", "└─ ": "   "}[elbow]
        single = len(outgoing) == 1 and not outgoing[0][1]
        for index, (target, condition) in reversed(list(enumerate(outgoing))):
            corner = "└─ " if index == len(outgoing) - 1 else "├─ "
            if single and elbow in ("", "└─ ") and target not in seen:
                waiting.append((target, lead, elbow and "└─ ", "→ ", ""))
            else:
                waiting.append((target, below, corner, f"[{condition}] " if condition else "", ""))


def _outgoing(step: Step) -> Iterator[tuple[str, str]]:
    for arc in step.next.arcs if step.next else ():
        yield arc.step, _condition(arc)
    admit = step.spec.policy.admit
    for rule in admit.rules if admit else ():
        if rule.then.next:
            yield rule.then.next, "skipped"


def _condition(arc: Arc) -> str:
    if arc.when is None or arc.when is True:
        return ""
    text = " ".join(str(arc.when).replace("{{", "").replace("}}", "").split())
    return text if len(text) <= 60 else text[:59] + "…"


def _kinds(step: Step) -> str:
    kinds = ", ".join(task.kind for task in step.tool)
    loop = f" ↻ {step.loop.spec.mode}" if step.loop else ""
    fork = " ⑂" if step.next and step.next.spec.mode == "inclusive" else ""
    return f" ({kinds or 'noop'}){loop}{fork}"


def mermaid(playbook: Playbook) -> str:
    """A Mermaid flowchart; guards are edge labels, loops have rounded boxes."""
    ids = {step.step: f"s{index}" for index, step in enumerate(playbook.workflow)}
    lines = ["flowchart TD"]
    for step in playbook.workflow:
        kinds = ", ".join(task.kind for task in step.tool) or "noop"
        label = f"{_safe(step.step)}<br/><small>{_safe(kinds)}</small>"
        opened, closed = ("([", "])") if step.loop else ("[", "]")
        lines.append(f'    {ids[step.step]}{opened}"{label}"{closed}')
    for step in playbook.workflow:
        for target, condition in _outgoing(step):
            edge = f'-->|"{_safe(condition)}"|' if condition else "-->"
            lines.append(f"    {ids[step.step]} {edge} {ids[target]}")
    lines.append(f"    entry(( )) --> {ids[playbook.entry]}")
    return "\n".join(lines) + "\n"


def _safe(text: str) -> str:
    for character, entity in (
        ("&", "#amp;"),
        ('"', "#quot;"),
        ("<", "#lt;"),
        (">", "#gt;"),
        ("|", "#124;"),
    ):
        text = text.replace(character, entity)
    return text

"""How details of an execution look on the screen: durations, loop progress, workload, children, the cause of a failure."""

from typing import Any

from noetl.cli.client import Row
from noetl.cli.output import coloured, columns, dim, say, status_text, to_json

SHOWN_WORKLOAD = 1_000  # characters
SHOWN_CHILDREN = 10
TEXTS = {"trace": "traceback", "stderr": "stderr", "stdout": "stdout", "data": "response"}


def seconds_text(seconds: float | None) -> str:
    """As people read it: 0.12 s, 3.4 s, 2 m 05 s, 3 h 12 m."""
    if seconds is None:
        return ""
    if seconds < 10:
        return f"{seconds:.2f} s"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} m {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} m"


def loop_text(loop: Row | None) -> str:
    """`7 of 10, 2 failed`."""
    if loop is None:
        return ""
    total = "…" if loop["total"] is None else loop["total"]
    counted = "".join(f", {loop[name]} {name}" for name in ("failed", "skipped") if loop[name])
    return f"{loop['done']} of {total}{counted}"


def print_state(state: Row) -> None:
    """What the execution read and wrote of its playbook's state, a line for each name."""
    for number, (name, known) in enumerate(state.items()):
        label = "state" if number == 0 else ""
        value = "not set" if known["unset"] else to_json(known["value"])
        facts = [f"read version {known['read_version']}"] if known["read_version"] else []
        facts += [f"wrote version {known['version']}"] if known["writes"] else []
        facts += (
            [f"version {known['conflict_version']} was written since"]
            if known["conflict_version"]
            else []
        )
        more = f"  {dim(', '.join(facts))}" if facts else ""
        say(f"{label:<10} {name}: {value[:200]}{more}")


def print_workload(workload: Row | None) -> None:
    """On one line, cut when it is long: `--json` has it whole."""
    if workload is None:
        say("workload   larger than 64 KB")
        return
    text = to_json(workload) if not workload else _one_line(workload)
    if len(text) > SHOWN_WORKLOAD:
        text = text[: SHOWN_WORKLOAD - 1] + "…"
    say(f"workload   {text}")


def _one_line(value: Any) -> str:
    import json

    return json.dumps(value, ensure_ascii=False, default=str)


def print_children(children: Row) -> None:
    """`counts` by status, and the first of `newest`."""
    if not children["total"]:
        return
    counts = ", ".join(f"{count} {status}" for status, count in sorted(children["counts"].items()))
    say(f"\nchildren: {counts}")
    rows = [
        (
            child["execution_id"],
            status_text(child["status"], child.get("recovered", 0)),
            child["path"],
            child["error"],
        )
        for child in children["newest"][:SHOWN_CHILDREN]
    ]
    columns(("EXECUTION", "STATUS", "PLAYBOOK", "ERROR"), rows)
    if children["total"] > len(rows):
        say(dim(f"… {children['total'] - len(rows)} more: exec list --parent ID shows them"))


def print_cause(cause: Row | None, execution_id: str) -> None:
    """Where the failure began, when that is another place, and what was printed or answered there."""
    if cause is None:
        return
    item = "" if cause["item"] is None else f", item {cause['item']}"
    if cause["execution_id"] != execution_id:
        where = f"child {cause['execution_id']} ({cause['path']}), step {cause['step']}{item}"
        say(coloured("failed", f"cause: {where}: {cause['code']}: {cause['message']}"))
    elif item:
        say(
            coloured(
                "failed", f"cause: step {cause['step']}{item}: {cause['code']}: {cause['message']}"
            )
        )
    for name, title in TEXTS.items():
        value = cause["detail"].get(name)
        if value in (None, "", {}):
            continue
        text = value if isinstance(value, str) else to_json(value)
        say(f"{title}:")
        say("\n".join(f"  {line}" for line in text.rstrip().splitlines()))

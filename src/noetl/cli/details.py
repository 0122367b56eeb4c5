"""Prints details of an execution: durations, loops, workload, children, the cause of a failure."""

import json
from collections.abc import Iterator
from typing import Any

from noetl.cli.output import (
    adapt_commands,
    add_colour,
    dim_text,
    format_status,
    print_table,
    say,
    shorten_text,
    to_json,
)
from noetl.client.rows import Row

MAX_WORKLOAD_CHARS = 1_000  # characters
MAX_CHILDREN = 10
# Details of a failure that are printed, with their titles.
FAILURE_DETAIL_TITLES = {
    "trace": "traceback",
    "stderr": "stderr",
    "stdout": "stdout",
    "data": "response",
}


def format_seconds(seconds: float | None) -> str:
    """A duration as people read it: 0.12 s, 30.4 s, 2 m 05 s, 3 h 12 m."""
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


def format_loop_progress(loop: Row | None) -> str:
    """The progress of a loop: `7 of 10, 2 failed`."""
    if loop is None:
        return ""
    total = "…" if loop["total"] is None else loop["total"]
    text = f"{loop['done']} of {total}"
    for name in ("failed", "skipped"):
        if loop[name]:
            text += f", {loop[name]} {name}"
    return text


def print_state(state: Row) -> None:
    """Print the values that the execution read and wrote in its playbook's state, one per line."""
    for number, (name, entry) in enumerate(state.items()):
        label = "state" if number == 0 else ""
        value = "not set" if entry["unset"] else to_json(entry["value"])
        line = f"{label:<10} {name}: {value[:200]}"
        facts = ", ".join(_list_state_facts(entry))
        if facts:
            line += f"  {dim_text(facts)}"
        say(line)


def _list_state_facts(entry: Row) -> Iterator[str]:
    if entry["read_version"]:
        yield f"read version {entry['read_version']}"
    if entry["writes"]:
        yield f"wrote version {entry['version']}"
    if entry["conflict_version"]:
        yield f"version {entry['conflict_version']} was written since"


def print_workload(workload: Row | None) -> None:
    """Print the workload on one line, cut if it is long. `--json` prints all of it."""
    if workload is None:
        say("workload   larger than 64 KB")
        return
    text = _to_one_line_json(workload)
    say(f"workload   {shorten_text(text, MAX_WORKLOAD_CHARS)}")


def _to_one_line_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def print_children(children: Row, execution_id: str) -> None:
    """Print the number of children by status, and the newest of them."""
    if not children["total"]:
        return
    by_status = sorted(children["counts"].items())
    counts = ", ".join(f"{count} {status}" for status, count in by_status)
    say(f"\nchildren: {counts}")
    rows = [
        (
            child["execution_id"],
            format_status(child["status"], child.get("recovered", 0)),
            child["path"],
            child["error"],
        )
        for child in children["newest"][:MAX_CHILDREN]
    ]
    print_table(("EXECUTION", "STATUS", "PLAYBOOK", "ERROR"), rows)
    more = children["total"] - len(rows)
    if more > 0:
        listed = adapt_commands(f"noetl exec list --parent {execution_id}")
        say(dim_text(f"… {more} more: {listed} shows them"))


def print_cause(cause: Row | None, execution_id: str) -> None:
    """Print where the failure began, unless it is the failed step itself, and its output there."""
    if cause is None:
        return
    place = f"step {cause['step']}"
    if cause["item"] is not None:
        place += f", item {cause['item']}"
    in_child = cause["execution_id"] != execution_id
    if in_child:
        place = f"child {cause['execution_id']} ({cause['path']}), {place}"
    if in_child or cause["item"] is not None:
        say(add_colour("failed", f"cause: {place}: {cause['code']}: {cause['message']}"))
    for name, title in FAILURE_DETAIL_TITLES.items():
        value = cause["detail"].get(name)
        if value in (None, "", {}):
            continue
        text = value if isinstance(value, str) else to_json(value)
        lines = [f"  {line}" for line in text.rstrip().splitlines()]
        say(f"{title}:")
        say("\n".join(lines))

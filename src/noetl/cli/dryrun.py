"""`noetl run --dry-run`: what an execution would do and need, said without doing any of it."""

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

from noetl.cli.output import say
from noetl.model.commands import DEFAULT_POOL
from noetl.playbook import graph
from noetl.playbook.expressions import TemplateError
from noetl.playbook.model import Arc, Loop, Playbook, PlaybookTask, SinkTask, Step, Task, WorkbookCall
from noetl.playbook.templates import render_value
from noetl.playbook.workload import Beginning, merge, readable_environment

Shape = dict[str, Any]


def planned(playbook: Playbook, payload: dict[str, Any]) -> Shape:
    """`uses` names what must be there when it runs: kinds of tools, pools of workers, credentials, playbooks it calls."""
    workbook = {entry.name: entry.tool for entry in playbook.workbook}
    spec = playbook.executor.spec
    path = playbook.metadata.path or playbook.metadata.name
    workload = merge(playbook, payload, Beginning(path=path, env=readable_environment(os.environ)))
    tasks = [task for step in playbook.workflow for task in _tasks(step, workbook)]
    return {
        "path": path,
        "workload": workload,
        "entry": playbook.entry,
        "final": spec.final_step,
        "limits": {"timeout": spec.timeout, "max_concurrent": spec.max_concurrent},
        "steps": [_step(step, workbook, workload) for step in playbook.workflow],
        "uses": {
            "tools": sorted({_kind(task) for task in tasks}),
            "pools": sorted({_pool(step, workbook, workload) for step in playbook.workflow}),
            "credentials": sorted(set(_credentials(playbook, tasks))),
            "playbooks": sorted({task.path for task in tasks if isinstance(task, PlaybookTask)}),
        },
    }


def _step(step: Step, workbook: Mapping[str, Task], workload: Shape) -> Shape:
    return {
        "step": step.step,
        "tasks": [_task(task) for task in _tasks(step, workbook)],
        "pool": _pool(step, workbook, workload),
        "timeout": step.spec.timeout,
        "loop": None if step.loop is None else _loop(step.loop),
        "next": [_arc(arc) for arc in step.next.arcs] if step.next is not None else [],
    }


def _task(task: Task) -> Shape:
    return {"task": task.name, "kind": _kind(task), "auth": _auth(task), "timeout": task.timeout}


def _loop(loop: Loop) -> Shape:
    source = loop.in_ if loop.cursor is None else f"cursor of {loop.cursor.kind}"
    window = loop.spec.max_in_flight
    return {"in": source, "iterator": loop.iterator, "mode": loop.spec.mode, "max_in_flight": window}


def _arc(arc: Arc) -> Shape:
    return {"step": arc.step, "when": arc.when}


def _tasks(step: Step, workbook: Mapping[str, Task]) -> Iterator[Task]:
    for task in step.tool:
        yield workbook.get(task.task, task) if isinstance(task, WorkbookCall) else task
        if task.spec.paginate is not None and task.spec.paginate.sink is not None:
            sink = task.spec.paginate.sink
            yield SinkTask(name=task.name, target=sink.target, data=sink.data)


def _kind(task: Task) -> str:
    return f"sink ({task.target.kind})" if isinstance(task, SinkTask) else task.kind


def _auth(task: Task) -> str | None:
    """A name. What stands in the playbook itself is not repeated."""
    given = task.target.auth if isinstance(task, SinkTask) else task.auth
    return given if isinstance(given, str) or given is None else "what stands in the playbook"


def _pool(step: Step, workbook: Mapping[str, Task], workload: Shape) -> str:
    """As it would be rendered; as it is written where that depends on what happens before."""
    if step.spec.pool is not None:
        try:
            return str(render_value(step.spec.pool, {**workload, "workload": workload}))
        except TemplateError:
            return step.spec.pool
    return "spark" if any(task.kind == "spark" for task in _tasks(step, workbook)) else DEFAULT_POOL


def _credentials(playbook: Playbook, tasks: list[Task]) -> Iterator[str]:
    """Stored ones, by name. An `auth` may name an entry of the keychain instead, which names its own."""
    entries = {entry.name for entry in playbook.keychain}
    for entry in playbook.keychain:
        name = entry.credential or entry.auth
        if entry.env is not None or entry.kind == "env":
            yield f"environment variable {entry.env or ', '.join(map(str, entry.map.values()))}"
        elif isinstance(name, str):
            yield name
    for task in tasks:
        auth = task.target.auth if isinstance(task, SinkTask) else task.auth
        if isinstance(auth, str) and auth not in entries:
            yield auth
        if task.kind == "secrets":
            yield str(task.config["secret"])
    for step in playbook.workflow:
        if step.loop is not None and step.loop.cursor is not None and isinstance(step.loop.cursor.auth, str):
            yield step.loop.cursor.auth


# ---- on the screen -----------------------------------------------------------------------------------------------------


def print_plan(plan: Shape, playbook: Playbook, here: tuple[str, ...]) -> None:
    """`here`: the kinds of tools that this machine has."""
    say(f"playbook     {plan['path']}")
    for name, value in plan["workload"].items():
        say(f"workload     {name}: {json.dumps(value, ensure_ascii=False)}")
    say()
    say(graph.tree(playbook).rstrip("\n"))
    say()
    for step in plan["steps"]:
        for line in _said(step):
            say(line)
    say()
    uses = plan["uses"]
    absent = [kind for kind in uses["tools"] if kind.partition(" ")[0] not in (*here, "workbook")]
    say(f"tools        {', '.join(uses['tools'])}")
    if absent:
        say(f"             not on this machine: {', '.join(absent)}")
    say(f"pools        {', '.join(uses['pools'])}")
    for name in ("credentials", "playbooks"):
        if uses[name]:
            say(f"{name:<12} {', '.join(uses[name])}")
    for name, value in plan["limits"].items():
        if value is not None:
            say(f"{name:<12} {value}")
    say("\nnothing was run")


def _said(step: Shape) -> Iterator[str]:
    tasks = " → ".join(f"{task['kind']}" + (f" (as {task['auth']})" if task["auth"] else "") for task in step["tasks"])
    yield f"{step['step']:<12} {tasks or 'noop'}" + (
        "" if step["pool"] == DEFAULT_POOL else f"   in pool {step['pool']}"
    )
    if (loop := step["loop"]) is not None:
        window = f", {loop['max_in_flight']} at once" if loop["max_in_flight"] else ""
        yield f"             for each {loop['iterator']} in {loop['in']}, {loop['mode']}{window}"
    for arc in step["next"]:
        yield f"             → {arc['step']}" + (f"  when {arc['when']}" if arc["when"] not in (None, True) else "")

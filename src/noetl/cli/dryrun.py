"""`noetl run --dry-run`: what an execution would do and need, said without doing any of it."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from noetl.cli.client import Client
from noetl.cli.output import say
from noetl.model.commands import DEFAULT_POOL
from noetl.playbook import graph
from noetl.playbook.assignments import is_state
from noetl.playbook.expressions import TemplateError
from noetl.playbook.model import (
    Arc,
    Loop,
    Output,
    Playbook,
    PlaybookTask,
    SinkTask,
    SparkTask,
    Step,
    Task,
    WorkbookCall,
)
from noetl.playbook.plan import compile_plan
from noetl.playbook.templates import render_value
from noetl.playbook.workload import Beginning, merge, readable_environment

Shape = dict[str, Any]
MISSING_HINTS = {
    "credentials": "noetl credential add {}",
    "playbooks": "register it before this one runs",
    "pools": "no worker serves it now; start one with --pool {}",
}


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
        "state": _state(playbook),
    }


def _state(playbook: Playbook) -> Shape:
    """Names of the playbook's state that an execution reads when it begins (null: all of them, a name is computed), and those
    that its steps may write."""
    plan = compile_plan(playbook, "")
    if plan.hides_state:
        return {"reads": [], "writes": []}
    written = {target.split(".")[1] for target in _targets(playbook) if is_state(target)}
    return {
        "reads": None if plan.state_names is None else sorted(plan.state_names),
        "writes": sorted(written),
    }


def _targets(playbook: Playbook) -> Iterator[str]:
    """Everything that a `set` of the playbook assigns."""
    for step in playbook.workflow:
        yield from step.set
        yield from (
            target
            for arc in (step.next.arcs if step.next is not None else [])
            for target in arc.set
        )
        for task in step.tool:
            yield from task.set
            yield from (target for rule in task.spec.policy.rules for target in rule.then.set)


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
    shown = {"task": task.name, "kind": _kind(task), "auth": _auth(task), "timeout": task.timeout}
    return {**shown, "spark": _spark(task)} if isinstance(task, SparkTask) else shown


def _spark(task: SparkTask) -> Shape:
    """What it reads, where its rows go, and which Spark does it; templates as they are written."""
    return {
        "profile": task.spec.profile,
        "inputs": {name: _input_place(given) for name, given in task.inputs.items()},
        "output": _output_place(task.output),
        "expect": [str(check.get("name") or check.get("sql")) for check in task.expect],
    }


def _input_place(given: Any) -> str:
    if not isinstance(given, dict):
        return str(given)
    if given.get("kind") is None:
        return str(given.get("path") or f"table {given.get('table')}")
    return f"{given['kind']} ({given.get('table') or 'a query'})"


def _output_place(output: Output) -> Shape:
    """The mode that is in force; without a place, the rows are the step's result."""
    if output.path is None and output.kind is None:
        return {"to": "result", "mode": None, "partition_by": output.partition_by, "key": []}
    to = output.path if output.path is not None else f"{output.kind} table {output.table}"
    mode = output.mode or ("overwrite" if output.path is not None else "insert")
    return {"to": to, "mode": mode, "partition_by": output.partition_by, "key": output.key}


def _loop(loop: Loop) -> Shape:
    source = loop.in_ if loop.cursor is None else f"cursor of {loop.cursor.kind}"
    window = loop.spec.max_in_flight
    shown = {
        "in": source,
        "iterator": loop.iterator,
        "mode": loop.spec.mode,
        "max_in_flight": window,
    }
    return {**shown, "exec": "spark"} if loop.spec.policy.exec == "spark" else shown


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
    on_spark = step.loop is not None and step.loop.spec.policy.exec == "spark"
    return (
        "spark"
        if on_spark or any(task.kind == "spark" for task in _tasks(step, workbook))
        else DEFAULT_POOL
    )


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
        auths = [auth, *_spark_auths(task)] if isinstance(task, SparkTask) else [auth]
        yield from (name for name in auths if isinstance(name, str) and name not in entries)
        if task.kind == "secrets":
            yield str(task.config["secret"])
    for step in playbook.workflow:
        if (
            step.loop is not None
            and step.loop.cursor is not None
            and isinstance(step.loop.cursor.auth, str)
        ):
            yield step.loop.cursor.auth


def _spark_auths(task: SparkTask) -> list[Any]:
    return [
        task.output.auth,
        *(given.get("auth") for given in task.inputs.values() if isinstance(given, dict)),
    ]


async def find_missing(uses: Shape, client: Client) -> Shape:
    """Of what `uses` names, what is not there now. Names with templates are not known before it runs."""
    stored = {row["name"] for row in await client.credentials()} | {"local"}
    registered = {row["path"] for row in await client.playbooks()}
    served = {pool for worker in await client.workers() for pool in worker["pools"]}
    variables = tuple(
        name for name in uses["credentials"] if name.startswith("environment variable ")
    )
    credentials = _absent(set(uses["credentials"]) - {*variables}, stored)
    pools = (
        _absent(uses["pools"], served) if client.runs else []
    )  # here this command brings a worker
    return {
        "credentials": credentials,
        "playbooks": _absent(uses["playbooks"], registered),
        "pools": pools,
    }


async def current_state(state: Shape, path: str, client: Client) -> Shape:
    """What the state that is read holds now, by name; names that nobody has set are left out."""
    names = state["reads"]
    if names == []:
        return {}
    rows = await client.state_values(path)
    return {row["name"]: row["value"] for row in rows if names is None or row["name"] in names}


def _absent(names: Iterable[str], there: set[str]) -> list[str]:
    return sorted(
        name for name in names if name not in there and "{{" not in name and "{%" not in name
    )


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
    for line in _state_lines(plan["state"]):
        say(line)
    for name, value in plan["limits"].items():
        if value is not None:
            say(f"{name:<12} {value}")
    for kind, hint in MISSING_HINTS.items():
        for name in plan.get("missing", {}).get(kind, []):
            say(f"missing      {kind.removesuffix('s')} {name}: {hint.format(name)}")
    say("\nnothing was run")


def _state_lines(state: Shape) -> Iterator[str]:
    """`now` is there when somebody could be asked."""
    if state["reads"] is None:
        yield "state        reads every name: one of them is computed"
    now = state.get("now", {})
    for name in state["reads"] or sorted(now):
        value = json.dumps(now[name], ensure_ascii=False)[:200] if name in now else "not set"
        yield f"state        reads {name}" + (f": {value}" if "now" in state else "")
    if state["writes"]:
        yield f"state        writes {', '.join(state['writes'])}"


def _said(step: Shape) -> Iterator[str]:
    tasks = " → ".join(
        f"{task['kind']}" + (f" (as {task['auth']})" if task["auth"] else "")
        for task in step["tasks"]
    )
    yield f"{step['step']:<12} {tasks or 'noop'}" + (
        "" if step["pool"] == DEFAULT_POOL else f"   in pool {step['pool']}"
    )
    if (loop := step["loop"]) is not None:
        where = ", on Spark" if loop.get("exec") == "spark" else ""
        window = f", {loop['max_in_flight']} at once" if loop["max_in_flight"] else ""
        yield f"             for each {loop['iterator']} in {loop['in']}, {loop['mode']}{window}{where}"
    for task in step["tasks"]:
        if "spark" in task:
            yield from _spark_lines(task["spark"])
    for arc in step["next"]:
        yield f"             → {arc['step']}" + (
            f"  when {arc['when']}" if arc["when"] not in (None, True) else ""
        )


def _spark_lines(spark: Shape) -> Iterator[str]:
    for name, place in spark["inputs"].items():
        yield f"             reads {name}: {place}"
    output = spark["output"]
    by = f", partitions by {', '.join(output['partition_by'])}" if output["partition_by"] else ""
    key = f", key {', '.join(output['key'])}" if output["key"] else ""
    mode = f" ({output['mode']}{key}{by})" if output["mode"] else by
    yield f"             writes {output['to']}{mode}"
    if spark["profile"]:
        yield f"             on the Spark of profile {spark['profile']}"

"""`noetl run --dry-run`: describes what an execution would do and need, and runs nothing."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from noetl.cli.arguments import PlaybookSource
from noetl.cli.client import open_client
from noetl.cli.language import check_playbook_or_raise, warn_of_unknown_names
from noetl.cli.output import say, say_json
from noetl.client.rows import RowClient
from noetl.embedded.cluster import PostgresCluster
from noetl.model.commands import DEFAULT_POOL
from noetl.playbook import graph
from noetl.playbook.assignments import is_state
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
from noetl.playbook.workload import WorkloadContext, merge_workload, readable_environment
from noetl.runtime.event_loop import run_in_loop
from noetl.runtime.tools import make_extra_tools
from noetl.settings import DatabaseSettings, HomeSettings, read_settings
from noetl.template.errors import TemplateError
from noetl.template.rendering import Renderer
from noetl.tools.registry import make_registry

Shape = dict[str, Any]
MISSING_HINTS = {
    "credentials": "noetl credential add {}",
    "playbooks": "register it before this one runs",
    "pools": "no worker serves it now; start one with --pool {}",
}


def plan_dry_run(playbook: Playbook, payload: dict[str, Any]) -> Shape:
    """The plan of an execution, as `--json` prints it.

    `uses` names what must exist when it runs: kinds of tools, pools of workers, credentials and
    child playbooks.
    """
    workbook = {entry.name: entry.tool for entry in playbook.workbook}
    spec = playbook.executor.spec
    path = playbook.metadata.path or playbook.metadata.name
    beginning = WorkloadContext(path=path, env=readable_environment(os.environ))
    workload = merge_workload(playbook, payload, beginning)
    tasks: list[Task] = []
    for step in playbook.workflow:
        tasks += _list_tasks(step, workbook)
    return {
        "path": path,
        "workload": workload,
        "entry": playbook.entry_step,
        "final": spec.final_step,
        "limits": {"timeout": spec.timeout, "max_concurrent": spec.max_concurrent},
        "steps": [_describe_step(step, workbook, workload) for step in playbook.workflow],
        "uses": {
            "tools": sorted({_name_kind(task) for task in tasks}),
            "pools": sorted({_find_pool(step, workbook, workload) for step in playbook.workflow}),
            "credentials": sorted(set(_list_credential_names(playbook, tasks))),
            "playbooks": sorted({task.path for task in tasks if isinstance(task, PlaybookTask)}),
        },
        "state": _describe_state(playbook),
    }


def _describe_state(playbook: Playbook) -> Shape:
    """The names of the playbook's state that an execution may read and write.

    `reads` is None if a name is computed: then the execution reads all of them.
    """
    plan = compile_plan(playbook, "")
    if plan.hides_state:
        return {"reads": [], "writes": []}
    reads = None
    if plan.state_names is not None:
        reads = sorted(plan.state_names)
    targets = filter(is_state, _list_set_targets(playbook))
    writes = sorted({target.split(".")[1] for target in targets})
    return {"reads": reads, "writes": writes}


def _list_set_targets(playbook: Playbook) -> Iterator[str]:
    """Every name that a `set` of the playbook assigns."""
    for step in playbook.workflow:
        yield from step.set
        for arc in _list_arcs(step):
            yield from arc.set
        for task in step.tool:
            yield from task.set
            for rule in task.spec.policy.rules:
                yield from rule.then.set


def _list_arcs(step: Step) -> list[Arc]:
    if step.next is None:
        return []
    return step.next.arcs


def _describe_step(step: Step, workbook: Mapping[str, Task], workload: Shape) -> Shape:
    loop = None if step.loop is None else _describe_loop(step.loop)
    return {
        "step": step.step,
        "tasks": [_describe_task(task) for task in _list_tasks(step, workbook)],
        "pool": _find_pool(step, workbook, workload),
        "timeout": step.spec.timeout,
        "loop": loop,
        "next": [_describe_arc(arc) for arc in _list_arcs(step)],
    }


def _describe_task(task: Task) -> Shape:
    shape = {
        "task": task.name,
        "kind": _name_kind(task),
        "auth": _name_auth(task),
        "timeout": task.timeout,
    }
    if isinstance(task, SparkTask):
        return {**shape, "spark": _describe_spark_task(task)}
    return shape


def _describe_spark_task(task: SparkTask) -> Shape:
    """The inputs, output and profile of a Spark task. Templates stay unrendered."""
    return {
        "profile": task.spec.profile,
        "inputs": {name: _describe_input(given) for name, given in task.inputs.items()},
        "output": _describe_output(task.output),
        "expect": [str(check.get("name") or check.get("sql")) for check in task.expect],
    }


def _describe_input(source: Any) -> str:
    if not isinstance(source, dict):
        return str(source)
    if source.get("kind") is None:
        return str(source.get("path") or f"table {source.get('table')}")
    return f"{source['kind']} ({source.get('table') or 'a query'})"


def _describe_output(output: Output) -> Shape:
    """Where the rows go and how. Without a place they are the step's result."""
    if output.path is not None:
        to, default_mode = output.path, "overwrite"
    elif output.kind is not None:
        to, default_mode = f"{output.kind} table {output.table}", "insert"
    else:
        return {
            "to": "result",
            "mode": None,
            "partition_by": output.partition_by,
            "key": [],
        }
    mode = output.mode or default_mode
    return {
        "to": to,
        "mode": mode,
        "partition_by": output.partition_by,
        "key": output.key,
    }


def _describe_loop(loop: Loop) -> Shape:
    source = loop.in_ if loop.cursor is None else f"cursor of {loop.cursor.kind}"
    shape = {
        "in": source,
        "iterator": loop.iterator,
        "mode": loop.spec.mode,
        "max_in_flight": loop.spec.max_in_flight,
    }
    if loop.spec.policy.exec == "spark":
        return {**shape, "exec": "spark"}
    return shape


def _describe_arc(arc: Arc) -> Shape:
    return {"step": arc.step, "when": arc.when}


def _list_tasks(step: Step, workbook: Mapping[str, Task]) -> Iterator[Task]:
    """The tasks of a step. A workbook call becomes its entry, a sink of pages a task of its own."""
    for task in step.tool:
        if isinstance(task, WorkbookCall):
            yield workbook.get(task.task, task)
        else:
            yield task
        paginate = task.spec.paginate
        if paginate is not None and paginate.sink is not None:
            sink = paginate.sink
            yield SinkTask(name=task.name, target=sink.target, data=sink.data)


def _name_kind(task: Task) -> str:
    if isinstance(task, SinkTask):
        return f"sink ({task.target.kind})"
    return task.kind


def _get_auth(task: Task) -> Any:
    if isinstance(task, SinkTask):
        return task.target.auth
    return task.auth


def _name_auth(task: Task) -> str | None:
    """The name of the task's credential. Credentials written in the playbook are not repeated."""
    auth = _get_auth(task)
    if isinstance(auth, str) or auth is None:
        return auth
    return "what stands in the playbook"


def _find_pool(step: Step, workbook: Mapping[str, Task], workload: Shape) -> str:
    """The pool of a step. A template that needs more than the workload stays unrendered."""
    if step.spec.pool is not None:
        try:
            scope = {**workload, "workload": workload}
            return str(Renderer().render_value(step.spec.pool, scope))
        except TemplateError:
            return step.spec.pool
    if step.loop is not None and step.loop.spec.policy.exec == "spark":
        return "spark"
    if any(task.kind == "spark" for task in _list_tasks(step, workbook)):
        return "spark"
    return DEFAULT_POOL


def _list_credential_names(playbook: Playbook, tasks: list[Task]) -> Iterator[str]:
    """The names of the stored credentials that the playbook needs.

    An `auth` that names an entry of the keychain counts as the credential of that entry.
    """
    entries = {entry.name for entry in playbook.keychain}
    for entry in playbook.keychain:
        name = entry.credential or entry.auth
        if entry.env is not None or entry.kind == "env":
            yield f"environment variable {entry.env or ', '.join(map(str, entry.map.values()))}"
        elif isinstance(name, str):
            yield name
    for task in tasks:
        for auth in _list_auths(task):
            if isinstance(auth, str) and auth not in entries:
                yield auth
        if task.kind == "secrets":
            yield str(task.config["secret"])
    for step in playbook.workflow:
        cursor = None if step.loop is None else step.loop.cursor
        if cursor is not None and isinstance(cursor.auth, str):
            yield cursor.auth


def _list_auths(task: Task) -> Iterator[Any]:
    yield _get_auth(task)
    if not isinstance(task, SparkTask):
        return
    yield task.output.auth
    for given in task.inputs.values():
        if isinstance(given, dict):
            yield given.get("auth")


async def find_missing(uses: Shape, client: RowClient) -> Shape:
    """The names in `uses` that do not exist now. Names with templates are unknown until it runs."""
    stored = {"local"}
    stored.update(row["name"] for row in await client.list_credentials())
    registered = {row["path"] for row in await client.list_playbooks()}
    served: set[str] = set()
    for worker in await client.list_workers():
        served.update(worker["pools"])
    credentials = [
        name for name in uses["credentials"] if not name.startswith("environment variable ")
    ]
    pools: list[str] = []
    if client.has_server:  # else the command itself brings a worker for every pool
        pools = _list_absent(uses["pools"], served)
    return {
        "credentials": _list_absent(credentials, stored),
        "playbooks": _list_absent(uses["playbooks"], registered),
        "pools": pools,
    }


async def read_current_state(state: Shape, path: str, client: RowClient) -> Shape:
    """The current values of the state that the execution reads, by name, without unset names."""
    names = state["reads"]
    if names == []:
        return {}
    rows = await client.list_state_values(path)
    values = {row["name"]: row["value"] for row in rows}
    if names is None:
        return values
    return {name: value for name, value in values.items() if name in names}


def _list_absent(names: Iterable[str], existing: set[str]) -> list[str]:
    literal = (name for name in names if "{{" not in name and "{%" not in name)
    return sorted(name for name in literal if name not in existing)


# ---- on the screen -----------------------------------------------------------------------------------------------------


def print_plan(plan: Shape, playbook: Playbook, here: tuple[str, ...]) -> None:
    """Print a plan. `here` are the kinds of tools that this machine has."""
    say(f"playbook     {plan['path']}")
    for name, value in plan["workload"].items():
        say(f"workload     {name}: {json.dumps(value, ensure_ascii=False)}")
    say()
    say(graph.draw_tree(playbook).rstrip("\n"))
    say()
    for step in plan["steps"]:
        for line in _list_plan_lines(step):
            say(line)
    say()
    _print_uses(plan["uses"], here)
    for line in _list_state_lines(plan["state"]):
        say(line)
    for name, value in plan["limits"].items():
        if value is not None:
            say(f"{name:<12} {value}")
    missing = plan.get("missing", {})
    for kind, hint in MISSING_HINTS.items():
        for name in missing.get(kind, []):
            say(f"missing      {kind.removesuffix('s')} {name}: {hint.format(name)}")
    say("\nnothing was run")


def _print_uses(uses: Shape, here: tuple[str, ...]) -> None:
    kinds = (*here, "workbook")
    absent = [kind for kind in uses["tools"] if kind.partition(" ")[0] not in kinds]
    say(f"tools        {', '.join(uses['tools'])}")
    if absent:
        say(f"             not on this machine: {', '.join(absent)}")
    say(f"pools        {', '.join(uses['pools'])}")
    for name in ("credentials", "playbooks"):
        if uses[name]:
            say(f"{name:<12} {', '.join(uses[name])}")


def _list_state_lines(state: Shape) -> Iterator[str]:
    """The state that is read and written. Values are known only if a server or database answered."""
    if state["reads"] is None:
        yield "state        reads every name: one of them is computed"
    now = state.get("now", {})
    for name in state["reads"] or sorted(now):
        line = f"state        reads {name}"
        if name in now:
            value = json.dumps(now[name], ensure_ascii=False)
            line += f": {value[:200]}"
        elif "now" in state:
            line += ": not set"
        yield line
    if state["writes"]:
        yield f"state        writes {', '.join(state['writes'])}"


def _list_plan_lines(step: Shape) -> Iterator[str]:
    tasks = " → ".join(map(_format_task, step["tasks"]))
    line = f"{step['step']:<12} {tasks or 'noop'}"
    if step["pool"] != DEFAULT_POOL:
        line += f"   in pool {step['pool']}"
    yield line
    if step["loop"] is not None:
        yield _format_loop(step["loop"])
    for task in step["tasks"]:
        if "spark" in task:
            yield from _list_spark_lines(task["spark"])
    for arc in step["next"]:
        line = f"             → {arc['step']}"
        if arc["when"] not in (None, True):
            line += f"  when {arc['when']}"
        yield line


def _format_task(task: Shape) -> str:
    text = str(task["kind"])
    if task["auth"]:
        text += f" (as {task['auth']})"
    return text


def _format_loop(loop: Shape) -> str:
    line = f"             for each {loop['iterator']} in {loop['in']}, {loop['mode']}"
    if loop["max_in_flight"]:
        line += f", {loop['max_in_flight']} at once"
    if loop.get("exec") == "spark":
        line += ", on Spark"
    return line


def _list_spark_lines(spark: Shape) -> Iterator[str]:
    for name, place in spark["inputs"].items():
        yield f"             reads {name}: {place}"
    output = spark["output"]
    key = f", key {', '.join(output['key'])}" if output["key"] else ""
    partitions = ""
    if output["partition_by"]:
        partitions = f", partitions by {', '.join(output['partition_by'])}"
    mode = f" ({output['mode']}{key}{partitions})" if output["mode"] else partitions
    yield f"             writes {output['to']}{mode}"
    if spark["profile"]:
        yield f"             on the Spark of profile {spark['profile']}"


def dry_run(
    source: PlaybookSource, workload: dict[str, Any], assignments: list[str], as_json: bool
) -> None:
    warn_of_unknown_names(source.text or "", assignments)
    text = source.text
    if text is None:
        text = run_in_loop(_read_stored_text(source.name))
    playbook = check_playbook_or_raise(text, source.name)
    plan = plan_dry_run(playbook, workload)
    run_in_loop(_add_current_facts(plan))
    here = (
        *make_registry().kinds,
        *make_extra_tools(read_settings(HomeSettings).home_path),
    )
    if as_json:
        say_json(plan)
    else:
        print_plan(plan, playbook, here)


async def _add_current_facts(plan: dict[str, Any]) -> None:
    """Add missing names and current state to the plan, if a server or a database can tell them."""
    place = read_settings(HomeSettings)
    if not place.server_urls and read_settings(DatabaseSettings).db_url is None:
        has_database = PostgresCluster(place.home_path).read_major() is not None
        if not has_database:
            return
    async with open_client("read") as client:
        plan["missing"] = await find_missing(plan["uses"], client)
        plan["state"]["now"] = await read_current_state(plan["state"], plan["path"], client)


async def _read_stored_text(path: str) -> str:
    async with open_client("read") as client:
        row = await client.get_playbook(path)
    return str(row["content"])

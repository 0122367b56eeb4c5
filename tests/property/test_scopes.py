"""Validation and run time agree: every name that validates at a place exists there, and every name that exists validates.

A place is asked twice. `{{ name }}` is validated, which refuses names that can never exist there. `{{ name is defined }}` is run
by the server's or the worker's own code, which says what is there. Names are all that the language has, their members, and some
that nobody has.
"""

import asyncio
import base64
import json
import pickle
import re
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import yaml

from noetl.model.codec import encode
from noetl.model.envelope import Envelope
from noetl.model.events import Parent
from noetl.model.ids import ExecutionId
from noetl.pipeline.loop.batched_items import BatchedItems
from noetl.pipeline.loop.on_spark import make_portable_plan as plan_for_spark
from noetl.playbook.plan import Plan, compile_plan
from noetl.playbook.validation import load, load_registered
from noetl.playbook.workload import WorkloadContext, merge_workload
from noetl.spark.messages import LoopSource, LoopWork
from noetl.spark.tasks.entry import choose_row_schema
from noetl.spark.tasks.shard import (
    _make_rows,
    _make_task_context,
    _run_pipeline_items,
    _run_plain_items,
)
from noetl.template.scopes import (
    ACTIVATION_NAMES,
    COMMON_NAMES,
    LOOP_ITEM_NAMES,
    OUTCOME_NAMES,
    PIPELINE_NAMES,
    LoopKind,
    ScopePlace,
    StepNames,
    list_names_at,
)
from noetl.tools.port import OutcomeListener, Success
from tests.play import Play
from tests.unit.pipeline.bench import Bench, Scripted, command

OUTER = {"index": 3, "loop_id": "1:each", "facility": "f"}  # this execution is the child of a loop
# Names that exist only when something happened: an error, a tool that gives such facts.
SOMETIMES = {
    "error",
    "execution.error",
    "execution.failed_step",
    *(
        f"{root}.{name}"
        for root in ("output", "outcome")
        for name in ("error", "http", "pg", "py", "spark", "stats")
    ),
}
DOCUMENT = {
    "apiVersion": "noetl.io/v2",
    "kind": "Playbook",
    "metadata": {"name": "test", "path": "test"},
    "workload": {"limit": 7},
    "keychain": [{"name": "app", "kind": "static", "map": {"id": "x"}}],
}


def candidates() -> list[str]:
    """Roots, members of roots, and names that do not exist."""
    roots = COMMON_NAMES | OUTCOME_NAMES | ACTIVATION_NAMES | PIPELINE_NAMES | LOOP_ITEM_NAMES
    roots |= {"env", "row", "first", "second", "limit", "up", "nobody", "now"}
    found = set(roots)
    for kind in LoopKind:
        for at in ScopePlace:
            step = StepNames(
                kind, "row", frozenset({"first", "second"}), scratch=frozenset({"mine"})
            )
            for root, members in list_names_at(at, step).members.items():
                found |= {f"{root}.{name}" for name in members | {"nobody"}}
    return sorted(found)


NAMES = candidates()
KEYS = {f"n{number}": name for number, name in enumerate(NAMES)}
PROBES = {key: f"{{{{ {name} is defined }}}}" for key, name in KEYS.items()}
Put = Callable[[Any], list[dict[str, Any]]]  # a map of templates at the place, in a workflow


def playbook(put: Put, value: Any) -> str:
    steps = put(value)
    final = {"executor": {"spec": {"final_step": "final"}}} if steps[-1]["step"] == "final" else {}
    return yaml.safe_dump({**DOCUMENT, **final, "workflow": steps}, sort_keys=False)


def list_accepted(put: Put) -> set[str]:
    """Names that validate. Asked a few at a time: findings are bounded."""
    return accepted_in(lambda value: playbook(put, value))


def accepted_in(text: Callable[[dict[str, str]], str]) -> set[str]:
    refused: set[str] = set()
    for start in range(0, len(NAMES), 40):
        some = {key: f"{{{{ {KEYS[key]} }}}}" for key in list(KEYS)[start : start + 40]}
        for finding in load(text(some)).findings:
            if finding.code == "UNKNOWN_NAME":
                refused |= set(re.findall(r"^`([^`]+)` can never", finding.message))
    return {name for name in NAMES if name not in refused and name.split(".")[0] not in refused}


def list_known(values: dict[str, Any]) -> set[str]:
    """Names that exist at run time, from what the probes gave."""
    return {name for key, name in KEYS.items() if values.get(key) is True}


def agree(put: Put, values: dict[str, Any], leaving: frozenset[str] = frozenset()) -> None:
    valid, there = list_accepted(put) - leaving, list_known(values)
    assert there - valid == set(), "exists at run time, and is refused"
    assert valid - there - SOMETIMES == set(), "validates, and does not exist at run time"
    assert len(there) > 5


def make_plan(put: Put) -> Plan:
    return compile_plan(load_registered(playbook(put, PROBES)), "hash")


# ---- on the server ----


UP = {"step": "up", "tool": {"kind": "python", "code": "x"}, "next": "s"}


def ended_play(put: Put, leaving: frozenset[str] = frozenset()) -> Play:
    play = Play(
        playbook(put, {key: probe for key, probe in PROBES.items() if KEYS[key] not in leaving})
    )
    play.start(parent=Parent(ExecutionId("1"), "call", OUTER))
    return play.run(lambda command: {"a": 1})


def arc(**fields: Any) -> dict[str, Any]:
    return {"spec": {"mode": "exclusive"}, "arcs": [{"step": "after", **fields}]}


def body(**fields: Any) -> dict[str, Any]:
    return {"step": "s", "tool": {"kind": "python", "code": "x"}, **fields}


LOOP = {"in": [1], "iterator": "row", "spec": {"mode": "sequential"}}
AFTER = {"step": "after"}
# What the server cannot know of a loop without opening its result: a worker evaluates it.
OF_DATA = frozenset(
    name
    for name in NAMES
    if name in ("response", "result", "output", "outcome")
    or name
    in {f"{root}.{member}" for root in ("output", "outcome") for member in ("data", "nobody")}
)
LOOPS = pytest.mark.parametrize(
    ("loop", "leaving"), [(None, frozenset()), (LOOP, OF_DATA)], ids=["step", "loop"]
)


@LOOPS
def test_step_set(loop: Any, leaving: frozenset[str]) -> None:
    more = {"loop": loop} if loop else {}

    def put(value: Any) -> list[dict[str, Any]]:
        return [UP, body(set={f"ctx.{key}": part for key, part in value.items()}, **more)]

    agree(put, ended_play(put, leaving).state.ctx, leaving)


@LOOPS
def test_arc_set_and_args(loop: Any, leaving: frozenset[str]) -> None:
    more = {"loop": loop} if loop else {}

    def sets(value: Any) -> list[dict[str, Any]]:
        return [
            UP,
            body(next=arc(set={f"ctx.{key}": part for key, part in value.items()}), **more),
            AFTER,
        ]

    agree(sets, ended_play(sets, leaving).state.ctx, leaving)

    def args(value: Any) -> list[dict[str, Any]]:
        keep = {f"ctx.{key}": f"{{{{ input.{key} }}}}" for key in value}
        return [UP, body(next=arc(args=value), **more), {**AFTER, "set": keep}]

    agree(args, ended_play(args, leaving).state.ctx, leaving)


def test_arc_guard() -> None:
    def put(value: Any) -> list[dict[str, Any]]:
        return [
            UP,
            body(
                next={
                    "spec": {"mode": "inclusive"},
                    "arcs": [{"step": f"to_{k}", "when": v} for k, v in value.items()],
                }
            ),
            *({"step": f"to_{key}", "set": {f"ctx.{key}": True}} for key in value),
        ]

    taken = ended_play(put).state.ctx
    agree(put, {key: taken.get(key, False) for key in KEYS})


def make_admission(key: str, guard: str) -> dict[str, Any]:
    rules = [{"when": guard}, {"else": {"allow": False}}]
    return {
        "step": f"to_{key}",
        "spec": {"policy": {"admit": {"rules": rules}}},
        "set": {f"ctx.{key}": True},
    }


def test_admit() -> None:
    def put(value: Any) -> list[dict[str, Any]]:
        fork = {"spec": {"mode": "inclusive"}, "arcs": [{"step": f"to_{key}"} for key in value]}
        return [{**UP, "next": fork}, *(make_admission(key, part) for key, part in value.items())]

    taken = ended_play(put).state.ctx
    agree(put, {key: taken.get(key, False) for key in KEYS})


def test_pool() -> None:
    def put(value: Any) -> list[dict[str, Any]]:
        pools = {key: part.replace(" }}", " ~ '' }}") for key, part in value.items()}
        fork = {"spec": {"mode": "inclusive"}, "arcs": [{"step": f"to_{key}"} for key in value]}
        steps = [{**body(spec={"pool": part}), "step": f"to_{key}"} for key, part in pools.items()]
        return [{**UP, "next": fork}, *steps]

    issued = [event for event in ended_play(put).log if event.type == "command.issued"]
    agree(put, {event.step.removeprefix("to_"): event.pool in ("True", "true") for event in issued})


def test_loop_header() -> None:
    def put(value: Any) -> list[dict[str, Any]]:
        return [UP, body(loop={"in": [value], "iterator": "row"})]

    play = ended_play(put)
    (collection,) = [event.collection for event in play.log if event.type == "loop.started"]
    agree(put, collection.items[0] if collection.items else play.fixed.collections["s"][0])


def test_final_step() -> None:
    def put(value: Any) -> list[dict[str, Any]]:
        return [
            {**UP, "next": []},
            {**body(set={f"ctx.{key}": part for key, part in value.items()}), "step": "final"},
        ]

    agree(put, ended_play(put).state.ctx)


# ---- on a worker ----


class ManyProbes(Scripted):
    """Answers many calls at once, as Python does: items then share one rendering path."""

    async def run_many(
        self,
        config: Any,
        inputs: Any,
        log: Any,
        listener: OutcomeListener,
        *,
        at_once: int = 1,
        stop: bool = False,
        playbook: Any = None,
    ) -> None:
        for nth, given in enumerate(inputs):
            listener(nth, Success(given), 0.0, 1)


def scope_fields() -> dict[str, Any]:
    return {"workload": {"limit": 7}, "outer": OUTER, "path": "test", "event": "call.done"}


def bench(*, many: bool = False) -> Bench:
    more = [
        Scripted(lambda call: {"rows": [{"a": 1}]}, kind="postgres"),
        Scripted(lambda call: 1, kind="sink"),
    ]
    found = Bench(more=more)
    if many:
        found.tool.__class__ = ManyProbes
    return found


def run_probes(put: Put, found: Bench, **fields: Any) -> Any:
    fields = {"kind": "run", **fields, **scope_fields()}
    plan = make_plan(put)
    event = fields.pop("event")
    scope = {name: fields.pop(name) for name in ("workload", "outer", "path")}
    results = {"up": found.put({"a": 1})}
    issued = command(plan, "s", results=results, **scope, **fields)
    issued = msgspec.structs.replace(
        issued, scope=msgspec.structs.replace(issued.scope, event=event)
    )
    report = asyncio.run(_execute(found, plan, issued))
    assert report.result.error is None, report.result.error
    return report


async def _execute(found: Bench, plan: Plan, issued: Any) -> Any:
    from noetl.pipeline.execute import execute

    sent = await execute(found.env, plan, issued, found._record)
    return sent.event


KINDS = {
    "step": (None, {}),
    "sequential": (LOOP, {"kind": "chunk", "count": 1, "size": 1, "items": ("x",), "together": 1}),
    "parallel": (
        {**LOOP, "spec": {"mode": "parallel"}},
        {"kind": "chunk", "count": 1, "size": 1, "items": ("x",), "together": 1},
    ),
    "cursor": (
        {
            "cursor": {"kind": "postgres", "claim": "update"},
            "iterator": "row",
            "spec": {"mode": "cursor", "frame": 2},
        },
        {"kind": "frame", "count": 2},
    ),
}


def step_of(loop: Any, **fields: Any) -> list[dict[str, Any]]:
    return [UP, body(**({"loop": loop} if loop else {}), **fields)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("many", [False, True], ids=["pipeline", "plain"])
def test_input(kind: str, many: bool) -> None:
    loop, fields = KINDS[kind]
    for wrap in (
        lambda value: step_of(loop, input=value),
        lambda value: step_of(loop, tool={"kind": "python", "code": "x", "input": value}),
    ):
        found = bench(many=many)
        report = run_probes(wrap, found, **fields)
        value = found.value(report.result)
        agree(wrap, value[0]["result"] if loop else value)


@pytest.mark.parametrize("kind", KINDS)
def test_tool_fields(kind: str) -> None:
    loop, fields = KINDS[kind]

    def put(value: Any) -> list[dict[str, Any]]:
        return step_of(loop, tool={"kind": "python", "code": "x", "env": value})

    found = bench()
    run_probes(put, found, **fields)
    agree(put, found.tool.calls[0].config["env"])


@pytest.mark.parametrize("kind", KINDS)
def test_later_task(kind: str) -> None:
    loop, fields = KINDS[kind]

    def put(value: Any) -> list[dict[str, Any]]:
        first = {"name": "first", "kind": "python", "code": "x"}
        return step_of(
            loop, tool=[first, {"name": "second", "kind": "python", "code": "x", "input": value}]
        )

    found = bench()
    run_probes(put, found, **fields)
    agree(put, found.tool.calls[1].input)


@pytest.mark.parametrize("kind", KINDS)
def test_sink_task_and_what_follows_it(kind: str) -> None:
    loop, fields = KINDS[kind]
    sink = {"kind": "sink", "target": {"kind": "postgres", "table": "t"}}

    def make_steps(value: Any) -> list[dict[str, Any]]:
        return step_of(
            loop,
            tool=[
                {"name": "first", "kind": "python", "code": "x"},
                {"name": "second", **sink, "data": value},
            ],
        )

    found = bench()
    run_probes(make_steps, found, **fields)
    agree(make_steps, found.more[1].calls[0].config["data"])  # type: ignore[attr-defined]

    def following(value: Any) -> list[dict[str, Any]]:
        last = {"name": "last", "kind": "python", "code": "x", "input": value}
        return step_of(
            loop,
            tool=[
                {"name": "first", "kind": "python", "code": "x"},
                {"name": "second", **sink},
                last,
            ],
        )

    found = bench()
    run_probes(following, found, **fields)
    agree(following, found.tool.calls[1].input)


@pytest.mark.parametrize("kind", ["step", "sequential"])
@pytest.mark.parametrize("where", ["task", "rule"])
def test_task_set_and_rule_set(kind: str, where: str) -> None:
    loop, fields = KINDS[kind]

    def put(value: Any) -> list[dict[str, Any]]:
        values = {f"ctx.{key}": part for key, part in value.items()}
        rule = {"policy": {"rules": [{"when": True, "then": {"do": "continue", "set": values}}]}}
        task = {"set": values} if where == "task" else {"spec": rule}
        return step_of(loop, tool=[{"name": "first", "kind": "python", "code": "x", **task}])

    report = run_probes(put, bench(), **fields)
    agree(put, {name.removeprefix("ctx."): value for name, value in report.set.items()})


@pytest.mark.parametrize("kind", ["step", "sequential"])
def test_rule_guard(kind: str) -> None:
    """A rule with a guard that holds sets a name. The first that matches wins, so each guard is run alone."""
    loop, fields = KINDS[kind]

    def put(value: Any) -> list[dict[str, Any]]:
        rules = [
            {"when": part, "then": {"do": "continue", "set": {f"ctx.{key}": True}}}
            for key, part in value.items()
        ]
        task = {
            "name": "first",
            "kind": "python",
            "code": "x",
            "spec": {"policy": {"rules": rules}},
        }
        return step_of(loop, tool=[task])

    values: dict[str, Any] = {}
    for key, probe in PROBES.items():
        report = run_probes(lambda _, one={key: probe}: put(one), bench(), **fields)  # type: ignore[misc]
        values |= {name.removeprefix("ctx."): value for name, value in report.set.items()}
    agree(put, values)


@pytest.mark.parametrize("kind", KINDS)
def test_pages_and_their_sinks(kind: str) -> None:
    loop, fields = KINDS[kind]

    def following(value: Any) -> list[dict[str, Any]]:
        page = {"when": "{{ response.data.more }}", "next_call": {"env": value}}
        return step_of(
            loop,
            tool=[{"name": "first", "kind": "python", "code": "x", "spec": {"paginate": page}}],
        )

    found = bench()
    found.does = lambda call: {"data": {"more": len(found.tool.calls) == 1}}
    run_probes(following, found, **fields)
    agree(following, found.tool.calls[1].config["env"])

    def make_steps(value: Any) -> list[dict[str, Any]]:
        page = {
            "when": "{{ response.data.more }}",
            "next_call": {"env": {"a": "b"}},
            "sink": {"target": {"kind": "postgres", "table": "t"}, "data": value},
        }
        return step_of(
            loop,
            tool=[{"name": "first", "kind": "python", "code": "x", "spec": {"paginate": page}}],
        )

    found = bench()
    found.does = lambda call: {"data": {"more": len(found.tool.calls) == 1}}
    run_probes(make_steps, found, **fields)
    agree(make_steps, found.more[1].calls[0].config["data"])  # type: ignore[attr-defined]


def test_provenance() -> None:
    def put(value: Any) -> list[dict[str, Any]]:
        return step_of(None, tool={"kind": "python", "code": "x", "provenance": value})

    agree(put, run_probes(put, bench()).result.meta.provenance)


def test_cursor_claim() -> None:
    def put(value: Any) -> list[dict[str, Any]]:
        cursor = {"kind": "postgres", "claim": "update", "params": value}
        return step_of(
            {"cursor": cursor, "iterator": "row", "spec": {"mode": "cursor", "frame": 2}}
        )

    found = bench()
    run_probes(put, found, **KINDS["cursor"][1])
    agree(put, found.more[0].calls[0].config["params"])  # type: ignore[attr-defined]


@pytest.mark.parametrize("loop", [None, LOOP], ids=["step", "loop"])
def test_a_worker_that_evaluates_for_the_server_has_all_names_of_the_server(loop: Any) -> None:
    def put(value: Any) -> list[dict[str, Any]]:
        return step_of(loop, set={f"ctx.{key}": part for key, part in value.items()})

    found, plan = bench(), make_plan(put)
    own = found.put({"a": 1}, "s")
    own = msgspec.structs.replace(own, context={"stats": {"total": 1}}) if loop else own
    fields = {
        "workload": {"limit": 7},
        "outer": OUTER,
        "path": "test",
        "own": own,
        "results": {"up": found.put(1)},
    }
    issued = command(plan, "s", kind="evaluate", site="set", **fields)
    event = asyncio.run(_execute(found, plan, issued))
    there = {
        name
        for (key, name), value in zip(KEYS.items(), event.values, strict=True)
        if value.value is True
    }
    assert list_accepted(put) - there - SOMETIMES == set()


@pytest.mark.parametrize("plain", [True, False], ids=["plain", "pipeline"])
def test_spark_loop_task(plain: bool) -> None:
    def put(value: Any) -> list[dict[str, Any]]:
        loop = {**LOOP, "spec": {"mode": "parallel", "policy": {"exec": "spark"}}}
        tool = {"name": "first", "kind": "python", "code": "result = input", "input": value}
        last = {
            "name": "second",
            "kind": "python",
            "code": "result = x",
            "input": {"x": "{{ first }}"},
        }
        more = [] if plain else [last]
        return step_of(loop, tool=[tool, *more])

    async def items() -> Any:
        plan = make_plan(put)
        fields = {"workload": {"limit": 7}, "outer": OUTER, "path": "test", "size": 1}
        issued = command(plan, "s", kind="chunk", results={"up": Envelope(status="ok")}, **fields)
        work = LoopWork(
            plan=base64.b64encode(pickle.dumps(plan_for_spark(plan, "s"))).decode(),
            command=base64.b64encode(encode(issued)).decode(),
            known=base64.b64encode(encode({"up": {"a": 1}})).decode(),
            chunk=1,
            shards=1,
            together=1,
            size=1,
            provenance=False,
            source=LoopSource([], indexed=False),
            reports="",
            ticket="none",
        )
        context = await _make_task_context(work)
        found = BatchedItems.from_shared(context.shared, context.make_writes(), "now")
        assert (found is not None) == plain
        if found is None:
            columns, _, _ = await _run_pipeline_items(
                context, [(0, "x")], choose_row_schema(work).names
            )
        else:
            columns, _ = await _run_plain_items(context, found, [(0, "x")])
        rows = _make_rows(choose_row_schema(work), columns)
        return rows.column("result")[0].as_py(), rows.column("error")[0].as_py()

    value, error = asyncio.run(items())
    assert error is None, error
    agree(put, json.loads(value) if isinstance(value, str) else value)


# ---- once, at the start ----


def test_workload_defaults() -> None:
    def text(value: dict[str, Any]) -> str:
        workload = {"limit": 7, "map": value, "later": 1}
        return yaml.safe_dump(
            {**DOCUMENT, "workload": workload, "workflow": [{"step": "s"}]}, sort_keys=False
        )

    merged = merge_workload(
        load_registered(text(PROBES)), {}, WorkloadContext("99", "test", 1, {"HOST": "h"})
    )
    assert list_known(merged["map"]) == accepted_in(text)


def test_keychain_entries() -> None:
    def text(value: dict[str, Any]) -> str:
        keychain = [
            {"name": "app", "kind": "static", "map": {"id": "x"}},
            {"name": "all", "kind": "static", "map": value},
        ]
        step = body(tool={"kind": "python", "code": "x", "input": {"found": "{{ keychain.all }}"}})
        return yaml.safe_dump(
            {**DOCUMENT, "keychain": keychain, "workflow": [UP, step]}, sort_keys=False
        )

    found = bench()
    plan = compile_plan(load_registered(text(PROBES)), "hash")
    issued = command(plan, "s", workload={"limit": 7}, path="test")
    asyncio.run(_execute(found, plan, issued))
    assert list_known(found.tool.calls[0].input["found"]) == accepted_in(text) - SOMETIMES

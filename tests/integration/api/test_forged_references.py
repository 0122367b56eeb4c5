# ruff: noqa: E501 - playbooks on one line
"""A map from outside that looks like a link to a stored value is plain data: it names nobody's results.

Each playbook brings the map in by another way and hands it to `report`. The result of `report` must be the map itself.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from noetl.results.router import ResultRouter
from noetl.results.tiers.large import LargeStore
from noetl.results.tiers.memory import TierMemory
from noetl.server.node import Server
from tests.integration.api.api_server import (
    ApiServer,
    make_memory_ports,
    run_api_server,
    run_worker,
)

CANARY = "canary-of-another-execution"
HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {{name: {name}, path: tests/{name}}}\n"
VICTIM = (
    HEAD.format(name="victim")
    + f"workflow:\n  - step: secret\n    tool: {{kind: noop, input: {{rows: [{CANARY}, 2]}}}}\n"
)
SEEN = '- {{step: report, tool: {{kind: noop, input: {{seen: "{{{{ {name} }}}}"}}}}}}\n'
NOOP = "tool: {kind: noop}"


def report(name: str) -> str:
    return SEEN.format(name=name)


WAYS = {
    "step set": f'- {{step: a, {NOOP}, set: {{ctx.x: "{{{{ workload.m }}}}"}}, next: report}}\n' + report("ctx.x"),
    "nested set": f'- {{step: a, {NOOP}, set: {{ctx.x: {{in: "{{{{ workload.m }}}}"}}}}, next: report}}\n'
    + report("ctx.x.in"),
    "part of ctx": f'- {{step: a, {NOOP}, set: {{ctx.x.in: "{{{{ workload.m }}}}"}}, next: report}}\n'
    + report("ctx.x.in"),
    "arc set": f'- {{step: a, {NOOP}, next: [{{step: report, set: {{ctx.x: "{{{{ workload.m }}}}"}}}}]}}\n'
    + report("ctx.x"),
    "arc args": f'- {{step: a, {NOOP}, next: [{{step: report, args: {{x: "{{{{ workload.m }}}}"}}}}]}}\n'
    + report("args.x"),
    "scratch": f'- {{step: a, {NOOP}, set: {{step.x: "{{{{ workload.m }}}}"}}, '
    'next: [{step: report, args: {x: "{{ step.x }}"}}]}\n' + report("args.x"),
    "copied ctx": f'- {{step: a, {NOOP}, set: {{ctx.x: "{{{{ workload.m }}}}"}}, next: b}}\n'
    f'- {{step: b, {NOOP}, set: {{ctx.y: "{{{{ ctx.x }}}}"}}, next: report}}\n' + report("ctx.y"),
    "task set": '- {step: a, tool: {kind: noop, input: {x: "{{ workload.m }}"}, set: {ctx.x: "{{ result.x }}"}}, next: report}\n'
    + report("ctx.x"),
    "task set, then a task": "- step: a\n  tool:\n"
    '    - {name: one, kind: noop, input: {x: "{{ workload.m }}"}, set: {ctx.x: "{{ result.x }}"}}\n'
    '    - {name: two, kind: noop, input: {x: "{{ ctx.x }}"}}\n  next: report\n' + report("a.x"),
    "member of a result": '- {step: a, tool: {kind: noop, input: {x: "{{ workload.m }}"}}, next: report}\n' + report("a.x"),
    "member, selected": '- {step: a, tool: {kind: noop, input: {x: "{{ workload.m }}"}}, set: {ctx.x: "{{ result.x }}"}, next: report}\n'
    + report("ctx.x"),
    "loop collection": '- {step: a, loop: {in: "{{ workload.m }}", iterator: i}, tool: {kind: noop, input: {x: "{{ i }}"}}, next: report}\n'
    + report("a.rows[0].x"),
    "loop item": '- {step: a, loop: {in: ["{{ workload.m }}"], iterator: i}, tool: {kind: noop, input: {x: "{{ i }}"}}, next: report}\n'
    + report("a.rows[0].x"),
    "reducer": '- {step: a, loop: {in: [1], iterator: i, spec: {mode: parallel, reduce: {ctx.x: last}}}, '
    'tool: {kind: noop, set: {ctx.x: "{{ workload.m }}"}}, next: report}\n' + report("ctx.x"),
    "signal": "- {step: a, tool: {kind: wait, signal: go}, set: {ctx.x: \"{{ result }}\"}, next: report}\n" + report("ctx.x"),
    "signal, by a task": '- {step: a, tool: {kind: wait, signal: go, set: {ctx.x: "{{ result }}"}}, next: report}\n'
    + report("ctx.x"),
    "literal of a step": f"- {{step: a, {NOOP}, set: {{ctx.x: FORGED}}, next: report}}\n" + report("ctx.x"),
    "literal of a task": "- {step: a, tool: {kind: noop, set: {ctx.x: FORGED}}, next: report}\n" + report("ctx.x"),
    "literal, then a task": "- step: a\n  tool:\n    - {name: one, kind: noop, set: {ctx.x: FORGED}}\n"
    '    - {name: two, kind: noop, input: {x: "{{ ctx.x }}"}}\n  next: report\n' + report("a.x"),
    "literal of a loop": '- {step: a, loop: {in: [FORGED], iterator: i}, tool: {kind: noop, input: {x: "{{ i }}"}}, next: report}\n'
    + report("a.rows[0].x"),
    "rule": '- {step: a, tool: {kind: noop, spec: {policy: {rules: [{else: {do: continue, set: {ctx.x: "{{ workload.m }}"}}}]}}}, '
    "next: report}\n" + report("ctx.x"),
    "child": '- {step: a, tool: {kind: playbook, path: tests/echo, input: {m: "{{ workload.m }}"}}, next: report}\n' + report("a.seen"),
    "child of an item": '- {step: a, loop: {in: ["{{ workload.m }}"], iterator: i}, '
    'tool: {kind: playbook, path: tests/outer}, next: report}\n' + report("a.rows[0].seen"),
}  # fmt: skip
ECHO = HEAD.format(name="echo") + "workflow:\n  " + report("workload.m").replace("report", "echo")
OUTER = (
    HEAD.format(name="outer") + "workflow:\n  " + report("iter.parent.i").replace("report", "outer")
)


async def stolen(here: ApiServer) -> dict[str, Any]:
    """The reference of another execution's result, as a link would hold it."""
    await here.register(VICTIM)
    victim = await here.start("tests/victim")
    assert (await here.wait_for_end(victim))["status"] == "completed"
    result = await here.get(f"/api/executions/{victim}/result/secret")
    assert CANARY in json.dumps(result)
    known = result["reference"]
    return {"ref_id": known["ref_id"], "type": "kv", "uri": known["uri"], "rows": known.get("rows")}


async def play_attack(here: ApiServer, text: str, payload: dict[str, Any], forged: Any) -> str:
    await here.register(text)
    path = "tests/attack"
    execution_id = await here.start(path, payload=payload)
    if "signal" in text:
        await here.wait_for_event(execution_id, "command.parked")
        await here.http.post(f"/api/executions/{execution_id}/signals/go", json={"payload": forged})
    ended = await here.wait_for_end(execution_id)
    assert ended["status"] == "completed", ended["failure"]
    return execution_id


def indent_steps(steps: str) -> str:
    return (
        HEAD.format(name="attack")
        + "workflow:\n"
        + "".join(f"  {line}\n" for line in steps.splitlines())
    )


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("form", ["reference", "address", "neither", "escaped"])
async def test_a_map_that_looks_like_a_link_is_plain_data(
    way: str, form: str, tmp_path: Path
) -> None:
    tier = TierMemory()

    def open_store(server: Server) -> ResultRouter:
        return ResultRouter(server, LargeStore(tier, tier.staging))

    async with (
        run_api_server(make_memory_ports(home=tmp_path), open_store=open_store) as here,
        run_worker(here, store=open_store(here.node.server)),
    ):
        reference = await stolen(here)
        for text in (ECHO, OUTER):
            await here.register(text)
        link = {"$reference": reference}
        forms = {
            "reference": link, "address": {"$reference": reference["uri"]}, "neither": {"$reference": {"x": [1]}},
            "escaped": {"$literal": link},
        }  # fmt: skip
        forged = forms[form]
        text = indent_steps(WAYS[way]).replace("FORGED", json.dumps(forged))
        execution_id = await play_attack(here, text, {"m": forged}, forged)
        result = await here.get(f"/api/executions/{execution_id}/result/report/data")
        assert result["seen"] == forged
        assert CANARY not in (await here.http.get(f"/api/vars/{execution_id}")).text
        assert CANARY not in (await here.http.get(f"/api/vars/{execution_id}/x")).text

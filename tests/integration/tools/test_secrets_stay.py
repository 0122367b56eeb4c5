"""Secrets planted in every place a playbook can use one are in nothing that a run leaves behind, also if it fails."""

import asyncio
import json

import msgspec
import pytest

from noetl.engine.fold import evolve
from noetl.engine.state import Execution, make_empty_execution
from noetl.runtime.memory import MemoryCluster
from tests.play import workflow
from tests.waiting import HANG_LIMIT_S

CANARIES = {
    name: f"canary-{name}-3f9a1c77"
    for name in ("cred", "envvar", "bearer", "basic", "static", "handle", "inline")
}
KEYCHAIN = [
    {"name": "c", "kind": "credential", "credential": "stored"},
    {"name": "e", "kind": "env", "env": "PLANTED"},
    {"name": "b", "kind": "bearer", "credential": "tokens"},
    {"name": "p", "kind": "basic", "credential": "login"},
]
STEPS = """
- step: start
  tool:
    - echo:
        kind: python
        code: "print('got', t)\\nresult = {'said': t, 'deep': [{'x': 'a' + t + 'b'}]}"
        input: {t: "{{ keychain.c.token }}"}
    - store: {kind: noop, set: {ctx.kept: "{{ keychain.e.value }}", ctx.nested: {a: ["{{ keychain.b.token }}"]}}}
  set: {ctx.more: "{{ start.said | default('') }}", ctx.echoed: "{{ output.data }}"}
  next: raises
- step: raises
  tool:
    kind: python
    code: "import sys\\nprint(p, file=sys.stderr)\\nraise ValueError('no ' + p)"
    input: {p: "{{ keychain.p.password }}"}
  next: [{step: shell, when: "{{ error.code == 'PYTHON_ERROR' }}", args: {why: "{{ error.message }}"}}]
- step: shell
  tool:
    kind: shell
    cmds: ["echo {{ keychain.c.token }}; echo {{ keychain.e.value }} >&2; echo $GIVEN; exit 3"]
    env: {GIVEN: "{{ keychain.b.token }}"}
  next: [{step: http, when: "{{ error is defined }}"}]
- step: http
  tool: {kind: http, url: "http://127.0.0.1:1/?token={{ keychain.c.token }}", auth: b, headers: {X: "{{ keychain.e.value }}"}}
  next: [{step: sql, when: "{{ error is defined }}"}]
- step: sql
  tool: {kind: postgres, auth: c, query: "SELECT {{ keychain.c.token }}"}
  next: [{step: duck, when: "{{ error is defined }}"}]
- step: duck
  tool: {kind: duckdb, query: "SELECT error({{ keychain.c.token }})"}
  next: [{step: secret, when: "{{ error is defined }}"}]
- step: secret
  tool: {kind: secrets, name: handle}
  next: use
- step: use
  tool: {kind: python, code: "print(v)\\nresult = {'v': v, 'n': len(v)}", input: {v: "{{ secret.value }}"}}
  next: each
- step: each
  loop: {in: [1, 2, 3], iterator: n, spec: {policy: {failure: best_effort}}}
  tool:
    kind: python
    code: "result = t\\nif n == 2:\\n    raise ValueError(t)"
    input: {t: "{{ keychain.c.token }}", n: "{{ n }}"}
  next: template
- step: template
  tool: {kind: noop, input: {x: "{{ keychain.c.token + 1 }}"}}
  next: [{step: crash, when: "{{ error is defined }}"}]
- step: crash
  tool: {kind: python, code: "import os\\nprint(t, flush=True)\\nos._exit(3)", input: {t: "{{ keychain.c.token }}"}}
  next: [{step: end, when: "{{ error is defined }}"}]
- step: end
  tool: {kind: noop, input: {done: true}}
"""


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = {
        "token": CANARIES["cred"],
        "host": "127.0.0.1",
        "port": 1,
        "user": "u",
        "password": CANARIES["static"],
    }
    credentials = {
        "STORED": stored,
        "TOKENS": {"token": CANARIES["bearer"]},
        "LOGIN": {"username": "ann", "password": CANARIES["basic"]},
        "HANDLE": {"value": CANARIES["handle"]},
    }
    for name, fields in credentials.items():
        monkeypatch.setenv(f"NOETL_CREDENTIAL_{name}", json.dumps(fields))
    monkeypatch.setenv("PLANTED", CANARIES["envvar"])


async def left_behind(text: str) -> tuple[Execution, list[str]]:
    """The end of a run, and everything it wrote: events, references, payloads, step logs."""
    wrote: list[str] = []
    async with MemoryCluster() as cluster, asyncio.timeout(HANG_LIMIT_S):
        execution = await cluster.start(text, "test.yaml", {})
        state, seq = make_empty_execution(execution), 0
        while not state.terminal:
            for recorded in await cluster.wait_for_events(execution, seq):
                state, seq = evolve(state, recorded.event), recorded.seq
                wrote.append(msgspec.json.encode(recorded.event).decode())
        for name, step in state.steps.items():
            result = step.result
            if result is not None and result.reference is not None:
                wrote.append(
                    f"{name}: {json.dumps(await cluster.resolve(result.reference), ensure_ascii=False)}"
                )
        async for rows in cluster.stream_logs(execution):
            wrote += [f"printed: {row['line']}" for row in rows]
        tables = vars(cluster._stores.log._db)
        parts = {name: vars(part) for name, part in tables.items() if hasattr(part, "__dict__")}
        wrote += [repr(tables), repr(parts)]
    return state, wrote


def test_planted_secrets_are_in_nothing_that_a_run_leaves(
    planted: None, caplog: pytest.LogCaptureFixture
) -> None:
    text = workflow(STEPS, keychain=KEYCHAIN)
    with caplog.at_level("DEBUG"):
        state, wrote = asyncio.run(left_behind(text))
    assert state.status == "completed", wrote[-5:]
    assert [
        name
        for name in (
            "start",
            "raises",
            "shell",
            "http",
            "sql",
            "duck",
            "use",
            "each",
            "crash",
            "end",
        )
        if name not in state.steps
    ] == []
    everything = "\n".join([*wrote, caplog.text])
    for name, canary in CANARIES.items():
        assert canary not in everything, name
    assert "***c.token***" in everything or "***stored.token***" in everything
    assert any(line.startswith("printed: got ***") for line in wrote)

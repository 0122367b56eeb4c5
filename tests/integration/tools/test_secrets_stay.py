"""Secrets planted in every place a playbook can use one are in nothing that a run leaves behind, also if it fails."""

import asyncio
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

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


# At each of these places a tool cuts text that it was given: the secret spans the cut.
CUT_STEPS = """
- step: stdout
  tool: {kind: shell, cmds: ["head -c 1048556 /dev/zero | tr '\\\\0' x; printf %s {{ keychain.c.token }}; echo"]}
  next: stderr
- step: stderr
  tool: {kind: shell, cmds: ["printf %s {{ keychain.c.token }} >&2; head -c 780 /dev/zero | tr '\\\\0' x >&2; exit 3"]}
  next: [{step: last, when: "{{ error is defined }}"}]
- step: last
  tool: {kind: shell, cmds: ["head -c 180 /dev/zero | tr '\\\\0' x >&2; printf %s {{ keychain.c.token }} >&2; exit 3"]}
  next: [{step: message, when: "{{ error is defined }}"}]
- step: message
  tool: {kind: python, code: "raise ValueError('x' * 1980 + t)", input: {t: "{{ keychain.c.token }}"}}
  next: [{step: line, when: "{{ error is defined }}"}]
- step: line
  tool: {kind: python, code: "print('x' * 16370 + t)\\nprint('x' * 65500 + t)", input: {t: "{{ keychain.c.token }}"}}
  next: trace
- step: trace
  tool: {kind: python, code: "raise ValueError(t + 'x' * 1980)", input: {t: "{{ keychain.c.token }}"}}
  next: [{step: http, when: "{{ error is defined }}"}]
- step: http
  tool: {kind: http, url: "ADDRESS", method: POST, headers: {X-Echo: "{{ keychain.c.token }}"}}
  next: [{step: failed, when: "{{ error is defined }}"}]
- step: failed
  tool: {kind: noop, input: {x: "{{ ('x' * 970 ~ keychain.c.token) | int }}"}}
  next: [{step: end, when: "{{ error is defined }}"}]
- step: end
  tool: {kind: noop, input: {done: true}}
"""
LONGEST_PART = 5  # characters of a secret that a cut may leave


class EchoingHandler(BaseHTTPRequestHandler):
    """Answers with an error whose excerpt ends inside the token that it was sent."""

    def do_POST(self) -> None:
        body = ("x" * 1480 + self.headers["X-Echo"] + "x" * 100).encode()
        self.send_response(500)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def test_secret_that_spans_a_cut_leaves_no_part(planted: None) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), EchoingHandler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        text = workflow(CUT_STEPS, keychain=KEYCHAIN)
        text = text.replace("ADDRESS", f"http://127.0.0.1:{server.server_port}/")
        state, wrote = asyncio.run(left_behind(text))
        server.shutdown()
    assert state.status == "completed", wrote[-5:]
    everything = "\n".join(wrote)
    secret = CANARIES["cred"]
    parts = [secret[at : at + LONGEST_PART + 1] for at in range(len(secret) - LONGEST_PART)]
    for part in parts:
        if part != "canary":  # the test's other secrets begin so too
            places = [line[:80] for line in wrote if part in line]
            assert not places, (part, places)
    assert "canary" not in everything.replace("canary-", "")


def test_secret_of_a_waiting_command_is_not_forgotten_beside_many(
    planted: None, tmp_path: Path
) -> None:
    """One branch waits while the other one uses many more secrets than the redactor keeps of ended commands."""
    begun, done = tmp_path / "begun", tmp_path / "done"
    waits = (
        f"import pathlib, time\npathlib.Path({str(begun)!r}).touch()\n"
        f"while not pathlib.Path({str(done)!r}).exists():\n    time.sleep(0.01)\nprint(t)\nresult = t"
    )
    uses = (
        f"import pathlib, time\nwhile not pathlib.Path({str(begun)!r}).exists():\n    time.sleep(0.01)\n"
        "result = len(many)"
    )
    fields = {f"secret{n}": f"one-of-many-secrets-{n:05}" for n in range(1_500)}
    steps = json.dumps(
        [
            {
                "step": "start",
                "tool": {"kind": "noop"},
                "next": {
                    "spec": {"mode": "inclusive"},
                    "arcs": [{"step": "waits"}, {"step": "uses"}],
                },
            },
            {
                "step": "waits",
                "tool": {
                    "kind": "python",
                    "code": waits,
                    "input": {"t": "{{ keychain.c.token }}"},
                },
            },
            {
                "step": "uses",
                "tool": {"kind": "python", "code": uses, "input": {"many": "{{ keychain.many }}"}},
                "next": "again",
            },
            {
                "step": "again",
                "tool": {
                    "kind": "python",
                    "code": f"import pathlib\npathlib.Path({str(done)!r}).touch()\nresult = len(many)",
                    "input": {"many": "{{ keychain.more }}"},
                },
            },
        ]
    )
    more = {name: f"{value}-again" for name, value in fields.items()}
    keychain = [
        *KEYCHAIN,
        {"name": "many", "kind": "static", "map": fields},
        {"name": "more", "kind": "static", "map": more},
    ]
    state, wrote = asyncio.run(left_behind(workflow(steps, keychain=keychain)))
    assert state.status == "completed", wrote[-5:]
    assert CANARIES["cred"] not in "\n".join(wrote)

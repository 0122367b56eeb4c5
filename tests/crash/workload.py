"""What runs while processes die: a chain, a loop with side effects, a pipeline, and a playbook that calls another."""

import asyncio
from typing import Any

import httpx
import psycopg

from noetl.cli.following import follow_execution
from noetl.cli.story import SilentDisplay, Story
from noetl.client.http import HttpClient
from noetl.model.ids import ExecutionId
from tests.play import workflow
from tests.waiting import look_again

ITEMS = 24

CHAIN = """
- {step: s1, tool: {kind: python, code: "result = {'n': 1}"}, next: s2}
- {step: s2, tool: {kind: python, input: {n: "{{ s1.n }}"}, code: "result = {'n': n + 1}"}, next: s3}
- {step: s3, tool: {kind: python, input: {n: "{{ s2.n }}"}, code: "result = {'n': n + 1}"}, next: s4}
- {step: s4, tool: {kind: python, input: {n: "{{ s3.n }}"}, code: "result = {'n': n + 1}"}}
"""

# Every item leaves a row behind: one more for each time it is begun.
LOOP = r"""
- step: items
  tool: {kind: python, input: {count: "{{ workload.count }}"}, code: "result = list(range(count))"}
  next: each
- step: each
  loop:
    in: "{{ items }}"
    iterator: number
    spec: {mode: parallel, max_in_flight: 6, reduce: {ctx.total: sum}}
  tool:
    - name: effect
      kind: postgres
      auth: effects
      query: insert into effect (execution, item, attempt) values ({{ execution_id }}, {{ number }}, {{ _attempt }})
      spec: {policy: {rules: [{when: "{{ error is defined }}", then: {do: retry, attempts: 100, delay: 100ms}}]}}
    - name: value
      kind: python
      input: {number: "{{ number }}", pause: "{{ workload.pause }}", begun: "{{ workload.begun }}"}
      code: |
        import os, time
        if begun:
            with open(begun, "a") as file:
                file.write(f"{os.getpid()} {number}\n")
        time.sleep(pause)
        result = {"square": number * number}
      set: {ctx.total: "{{ output.data.square }}"}
      spec: {policy: {rules: [{when: "{{ error is defined and error.code == 'TOOL_CRASHED' }}", then: {do: retry, attempts: 5}}]}}
  next: last
- step: last
  tool:
    kind: python
    input: {total: "{{ ctx.total }}", rows: "{{ each }}"}
    code: "result = {'total': total, 'squares': [row['square'] for row in rows]}"
"""

PIPELINE = """
- step: pipe
  tool:
    - {name: one, kind: python, code: "result = ['CANARY-' + 'x' * 2993] * 20"}
    - {name: two, kind: python, input: {rows: "{{ one }}"}, code: "result = {'letters': sum(map(len, rows))}"}
    - {name: three, kind: python, input: {n: "{{ two.letters }}"}, code: "result = {'letters': n, 'half': n // 2}"}
"""

PARENT = """
- step: call
  loop: {in: [1, 2], iterator: k, spec: {mode: parallel, max_in_flight: 2}}
  tool: {kind: playbook, path: crash/child, input: {k: "{{ k }}"}, return_step: made}
  next: last
- {step: last, tool: {kind: python, input: {rows: "{{ call }}"}, code: "result = [row['k'] for row in rows]"}}
"""

CHILD = """
- {step: begin, tool: {kind: noop}, next: made}
- {step: made, tool: {kind: python, input: {k: "{{ workload.k }}"}, code: "result = {'k': k * 10}"}}
"""

RESULTS: dict[str, Any] = {
    "chain": {"n": 4},
    "loop": {"total": sum(n * n for n in range(ITEMS)), "squares": [n * n for n in range(ITEMS)]},
    "pipeline": {"letters": 60_000, "half": 30_000},
    "parent": [10, 20],
}


def document(name: str, steps: str, **workload: Any) -> str:
    return workflow(steps, metadata={"name": name, "path": f"crash/{name}"}, workload=workload)


PLAYBOOKS = [
    document("chain", CHAIN),
    document("loop", LOOP, count=ITEMS, pause=0.03, begun=""),
    document("pipeline", PIPELINE),
    document("parent", PARENT),
    document("child", CHILD, k=0),
]


def make_effects(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "create table if not exists effect (execution bigint, item int, attempt int)"
        )


async def start(http: httpx.AsyncClient, name: str, key: str, **payload: Any) -> ExecutionId:
    """Asked until it is answered; the key makes one execution of it."""
    body = {"path": f"crash/{name}", "payload": payload}
    while True:
        try:
            answer = await http.post("/api/execute", json=body, headers={"Idempotency-Key": key})
            if answer.status_code < 500:
                return ExecutionId(answer.raise_for_status().json()["execution_id"])
        except httpx.TransportError:
            pass
        await look_again()


async def outcomes(client: HttpClient, executions: dict[str, ExecutionId]) -> dict[str, Story]:
    """Each one followed to its end over HTTP, and its result resolved."""
    forever = asyncio.Event()
    told = [
        follow_execution(client, each, SilentDisplay(logs=False), forever)
        for each in executions.values()
    ]
    return dict(zip(executions, await asyncio.gather(*told), strict=True))

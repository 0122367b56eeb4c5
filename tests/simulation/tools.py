"""Simulated tools: a body in a tiny language takes virtual time, has an effect in the world, and ends as it says.

The body is calls separated by semicolons: `ok()`, `value(x)`, `rows(n)`, `records(n)` (maps with a mark), `slow(seconds)`,
`hang()`, `stamp()` (a value that is different each time), `lose()` (its worker is killed), `fail()` always, `fail(n)` in the
first n tries of the policy, `fail_items(i, …)` for these items, `fail_item(i, n)` for item i in its first n tries,
`hang_item(i)`, `lose_item(i)`.
"""

import ast
import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

from noetl.model.errors import Failure
from noetl.model.exchange import LeaseKey
from noetl.model.ids import derive_id
from noetl.tools.port import Call, CallIdentity, Failed, Success
from tests.inspection import CANARY
from tests.simulation.loop import SimProcess


@dataclass(eq=False)
class Effect:
    """What a tool did to the world: once per call, even if the answer was lost."""

    key: str
    identity: CallIdentity
    value: str
    process: SimProcess
    at: float
    command: LeaseKey | None  # which attempt of which command; None for an item of a chunk
    pauses: int  # of its process until it began
    running: bool = True


@lru_cache(1000)
def parse_body(body: str) -> tuple[tuple[str, tuple[Any, ...]], ...]:
    steps = []
    for line in ast.parse(body).body:
        call = line.value  # type: ignore[attr-defined]
        steps.append((call.func.id, tuple(ast.literal_eval(argument) for argument in call.args)))
    return tuple(steps)


class Watcher(Protocol):
    def note_call(self, effect: Effect) -> None: ...


class Simulated:
    """`python`, or another kind with a body, as the simulation runs it. `lose` kills the process it runs in."""

    raw = frozenset({"code"})

    def __init__(
        self,
        process: SimProcess,
        node: Any,
        now: Callable[[], float],
        watcher: Watcher,
        lose: Callable[[], None],
        kind: str = "python",
    ) -> None:
        self.kind = kind
        self._lose = lose
        self._process = process
        self._node = node
        self._now = now
        self._watcher = watcher

    async def run(self, call: Call) -> Success | Failed:
        process = self._process
        process.check()
        value = derive_id(repr(sorted(call.input.items())))
        effect = Effect(
            call.key, call.identity, value, process, self._now(), self._command(), process.pauses
        )
        self._watcher.note_call(effect)
        try:
            return await self._do(call)
        finally:
            effect.running = not process.alive and effect.running

    def _command(self) -> LeaseKey | None:
        """Tools do not know the lease that they run under; the worker's table of jobs does."""
        task = asyncio.current_task()
        jobs = self._node.body._running_commands.values()
        return next((job.lease_key for job in jobs if job.task is task), None)

    async def _do(self, call: Call) -> Success | Failed:
        tries, item = call.identity.attempt, call.input.get("item")
        value: Any = {"value": 0, "input": dict(call.input)}
        for name, arguments in parse_body(call.config["code"]):
            match name, arguments:
                case "slow", (seconds,):
                    await asyncio.sleep(seconds)
                case "hang", ():
                    await asyncio.sleep(1e9)
                case "value", (given,):
                    value = {"value": given}
                case "rows", (count,):
                    value = list(range(count))
                case "records", (count,):
                    value = [{"n": number, "mark": f"{CANARY}{number}"} for number in range(count)]
                case "stamp", ():
                    value = {"value": self._now()}
                case "lose", ():
                    self._lose()
                    self._process.check()
                case "lose_item", (wanted,) if item == wanted:
                    self._lose()
                    self._process.check()
                case "hang_item", (wanted,) if item == wanted:
                    await asyncio.sleep(1e9)
                case "fail", ():
                    return make_failed(call)
                case "fail", (times,) if tries <= times:
                    return make_failed(call)
                case "fail_items", items if item in items:
                    return make_failed(call)
                case "fail_item", (wanted, times) if item == wanted and tries <= times:
                    return make_failed(call)
        return Success(value)


def make_failed(call: Call) -> Failed:
    return Failed(Failure(code="SIMULATED", message="as asked", retryable=True))

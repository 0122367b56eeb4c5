"""Large templates are rendered in a thread: the event loop of a worker goes on meanwhile."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from noetl.pipeline.failures import TaskFailed
from noetl.pipeline.scope.rendering import TaskRendering
from noetl.pipeline.scope.results import ResultReader
from noetl.template.limits import WORKER_LIMITS
from noetl.template.rendering import Renderer
from noetl.template.replay_functions import DerivedFunctions
from tests.resource_payloads import PAYLOADS

# Of processor time, which tells a busy template from a busy machine. A lease lasts six seconds, and is
# renewed several times before.
FREEZE_S = 1.0
BEAT_S = 0.01
SLOW = "{% for i in range(1000) %}{% for j in range(1000) %}{{ i * j }}{% endfor %}{% endfor %}"


def make_rendering(scope: dict[str, Any]) -> TaskRendering:
    async def read_no_manifest(*_: Any) -> Any:
        raise AssertionError("nothing is stored")

    reader = ResultReader(None, read_no_manifest)  # type: ignore[arg-type]  # no template here reads it
    renderer = Renderer(WORKER_LIMITS, DerivedFunctions("seed", "2024-01-01T00:00:00Z"))
    return TaskRendering(lambda: scope, reader, renderer, "step s, task t, input")


class Heartbeat:
    """Beats as often as the event loop lets it, and keeps the most work between two beats."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self.beats = 0
        self._last = time.process_time()
        self._timer = asyncio.get_running_loop().call_soon(self._beat)

    def _beat(self) -> None:
        now = time.process_time()
        self.longest_s = max(self.longest_s, now - self._last)
        self._last = now
        self.beats += 1
        self._timer = asyncio.get_running_loop().call_later(BEAT_S, self._beat)

    def stop(self) -> None:
        self._beat()
        self._timer.cancel()


@asynccontextmanager
async def heartbeat() -> AsyncIterator[Heartbeat]:
    beating = Heartbeat()
    try:
        yield beating
    finally:
        beating.stop()


async def render_payloads(payloads: list[str]) -> Heartbeat:
    rendering = make_rendering({"a": [1], "x": 1})
    failures = []
    async with heartbeat() as beating:
        for payload in payloads:
            try:
                await rendering.value({"field": payload})
            except TaskFailed as failed:
                failures.append(failed.failure)
    assert len(failures) > len(payloads) / 2
    assert {failure.kind for failure in failures} == {"template"}
    place = "step s, task t, input.field: "
    assert all(failure.message.startswith(place) for failure in failures)
    return beating


# One in ten each time, because all take most of a minute; every one in the long tests.
SHARES = [10, pytest.param(1, marks=pytest.mark.long)]


@pytest.mark.parametrize("one_in", SHARES)
def test_no_payload_makes_a_heartbeat_late(one_in: int) -> None:
    payloads = PAYLOADS[::one_in]
    beating = asyncio.run(render_payloads(payloads))
    assert beating.longest_s < FREEZE_S
    assert beating.beats > len(payloads)


@pytest.mark.parametrize("one_in", SHARES)
def test_many_payloads_at_once_make_no_heartbeat_late(one_in: int) -> None:
    payloads = PAYLOADS[1::one_in]

    async def render_all() -> Heartbeat:
        renderings = [make_rendering({"a": [1], "x": 1}) for _ in payloads]
        async with heartbeat() as beating:
            pairs = zip(renderings, payloads, strict=True)
            tasks = [rendering.value(payload) for rendering, payload in pairs]
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(
            isinstance(one, TaskFailed) or not isinstance(one, Exception) for one in outcomes
        )
        return beating

    assert asyncio.run(render_all()).longest_s < FREEZE_S


@pytest.mark.parametrize("count", [1, 20])
def test_a_timeout_ends_a_rendering(count: int) -> None:
    async def render_slowly() -> float:
        renderings = [make_rendering({"n": n}) for n in range(count)]
        began = time.process_time()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(BEAT_S):
                await asyncio.gather(*[rendering.value(SLOW) for rendering in renderings])
        return time.process_time() - began

    assert asyncio.run(render_slowly()) < FREEZE_S


def test_a_cancelled_rendering_ends_at_once() -> None:
    async def cancel() -> float:
        task = asyncio.create_task(make_rendering({}).value(SLOW))
        began = time.process_time()
        asyncio.get_running_loop().call_later(BEAT_S, task.cancel)
        with pytest.raises(asyncio.CancelledError):
            await task
        return time.process_time() - began

    assert asyncio.run(cancel()) < FREEZE_S


def test_a_signal_is_handled_while_a_template_is_rendered() -> None:
    async def render_until_signal() -> bool:
        loop = asyncio.get_running_loop()
        terminated = asyncio.Event()
        loop.add_signal_handler(signal.SIGTERM, terminated.set)
        task = asyncio.create_task(make_rendering({}).value(SLOW))
        loop.call_later(BEAT_S, os.kill, os.getpid(), signal.SIGTERM)
        await terminated.wait()
        was_rendering = not task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        loop.remove_signal_handler(signal.SIGTERM)
        return was_rendering

    assert asyncio.run(render_until_signal())


def test_a_failure_names_the_place_and_the_limit() -> None:
    with pytest.raises(TaskFailed) as caught:
        asyncio.run(make_rendering({}).value({"deep": [{"text": PAYLOADS[0]}]}))
    failure = caught.value.failure
    assert failure.code == "TEMPLATE_LIMIT"
    assert failure.message.startswith("step s, task t, input.deep[0].text: one operation of")
    assert "200000 operations" in failure.message


def test_a_large_list_is_rendered_in_the_thread() -> None:
    rows = [{"id": n} for n in range(100_000)]
    rendering = make_rendering({"rows": rows, "ctx": {"n": 1}})
    value = asyncio.run(rendering.value("{{ (rows | sum('id')) + ctx.n }}"))
    assert value == sum(range(100_000)) + 1

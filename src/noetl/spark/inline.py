"""`python` inside a Spark task: the task's process runs the code itself. Inputs and results pass as JSON, as they do elsewhere;
what code prints is in the log of the Spark server.
"""

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import orjson

from noetl.model.errors import Failure
from noetl.tools import python_child
from noetl.tools.port import Call, Failed, Log, Outcome, Ran, Success
from noetl.tools.python import outcome_of, source, written

RESULT_LIMIT = 64 << 20


class InlinePython:
    kind = "python"
    raw = frozenset({"code"})

    def __init__(self) -> None:
        self._programs = python_child.Programs()

    async def run(self, call: Call) -> Outcome:
        (outcome,) = (await self.run_many(call.config, (call.input,), lambda nth: call.log)).outcomes
        return outcome

    async def run_many(
        self, config: dict[str, Any], inputs: Sequence[dict[str, Any]], log: Callable[[int], Log]
    ) -> Ran:
        code = await source(config)
        if isinstance(code, Failure):
            return Ran([Failed(code)] * len(inputs), 0.0)
        env = {str(name): str(value) for name, value in (config.get("env") or {}).items() if value is not None}
        clock = asyncio.get_running_loop().time
        began = clock()
        outcomes = await asyncio.to_thread(self._all, code, env, inputs)  # code that awaits has a loop of its own
        return Ran(outcomes, clock() - began)

    def _all(self, code: str, env: dict[str, str], inputs: Sequence[dict[str, Any]]) -> list[Success | Failed]:
        with _environment(env):
            return [self._one(code, given) for given in inputs]

    def _one(self, code: str, given: dict[str, Any]) -> Success | Failed:
        data = written(given)
        if isinstance(data, Failed):
            return data
        answer = python_child.answer(self._programs, code, _decode(data), RESULT_LIMIT, _encoded)
        return outcome_of(_decode(answer), RESULT_LIMIT)


_decode = msgspec.json.Decoder().decode
_STRICT = orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_SUBCLASS


def _encoded(value: Any) -> bytes:
    """As `python_child.encode` writes it, and quicker where nothing special is in it. A null may be a NaN, which is refused."""
    try:
        made = orjson.dumps(value, None, _STRICT)
    except TypeError:
        return python_child.encode(value)
    return b'{"value":%b}' % made if b"null" not in made else python_child.encode(value)


@contextmanager
def _environment(env: dict[str, str]) -> Iterator[None]:
    if not env:
        yield
        return
    before = dict(os.environ)
    os.environ.update(env)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)

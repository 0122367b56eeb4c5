"""`python` inside a Spark task: the task's process runs the code itself. Inputs and results pass as JSON, as they do elsewhere;
what code prints is in the log of the Spark server.

Of many calls the results stay the JSON text that they are (`msgspec.Raw`): they are only written down.
"""

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import msgspec
import orjson

from noetl.model.errors import Failure
from noetl.spark.interrupts import run_interruptible
from noetl.tools import python_child
from noetl.tools.port import BatchOutcome, Call, Failed, Log, Outcome, Success
from noetl.tools.python import FACTS, outcome_of, source, written

RESULT_LIMIT = 64 << 20


class InlinePython:
    kind = "python"
    raw = frozenset({"code"})

    def __init__(self) -> None:
        self._programs = python_child.Programs()

    async def run(self, call: Call) -> Outcome:
        (outcome,) = (
            await self.run_many(call.config, (call.input,), lambda nth: call.log)
        ).outcomes
        assert outcome is not None
        return (
            outcome
            if isinstance(outcome, Failed)
            else Success(_decode(outcome.value), outcome.facts)
        )

    async def run_many(
        self,
        config: dict[str, Any],
        inputs: Sequence[dict[str, Any]],
        log: Callable[[int], Log],
        *,
        at_once: int = 1,
        stop: bool = False,
    ) -> BatchOutcome:
        code = await source(config)
        if isinstance(code, Failure):
            return BatchOutcome([Failed(code)] * len(inputs), 0.0)
        env = {
            str(name): str(value)
            for name, value in (config.get("env") or {}).items()
            if value is not None
        }
        clock = asyncio.get_running_loop().time
        began = clock()
        # in a thread: code that awaits has a loop of its own
        outcomes = await run_interruptible(partial(self._all, code, env, inputs, stop))
        return BatchOutcome(outcomes, clock() - began)

    def _all(
        self, code: str, env: dict[str, str], inputs: Sequence[dict[str, Any]], stop: bool
    ) -> list[Success | Failed | None]:
        """One after the other."""
        found: list[Success | Failed | None] = [None] * len(inputs)
        with _environment(env):
            for nth, given in enumerate(_copied(inputs)):
                found[nth] = outcome = (
                    given if isinstance(given, Failed) else self._one(code, given)
                )
                if stop and isinstance(outcome, Failed):
                    break
        return found

    def _one(self, code: str, given: dict[str, Any]) -> Success | Failed:
        answer: Any = python_child.answer(self._programs, code, given, RESULT_LIMIT, _encoded)
        if type(answer) is msgspec.Raw:
            return Success(answer, FACTS)
        found = outcome_of(_decode(answer), RESULT_LIMIT)
        return (
            found
            if isinstance(found, Failed)
            else Success(msgspec.Raw(msgspec.json.encode(found.value)), FACTS)
        )


def _copied(inputs: Sequence[dict[str, Any]]) -> list[dict[str, Any] | Failed]:
    """As code gets them, which may change them: through JSON, all at once where all can be written."""
    data = written(inputs)
    if not isinstance(data, Failed):
        copies: list[dict[str, Any] | Failed] = _decode(data)
        return copies
    each = [written(given) for given in inputs]
    return [data if isinstance(data, Failed) else _decode(data) for data in each]


_decode = msgspec.json.Decoder().decode


def _encoded(value: Any) -> msgspec.Raw | bytes:
    """Plain data at once. The rest, and a null, which may be a NaN, is for `python_child` to write or refuse."""
    try:
        made = orjson.dumps(value, None, python_child.STRICT)
    except TypeError:
        return python_child.encode(value)
    if b"null" in made:
        return python_child.encode_rest(value, keys_are_text=True)
    # a copy: the text as orjson made it keeps a kilobyte of memory busy, and that takes longer than all the rest
    return msgspec.Raw(b"%b" % made)


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

"""The tool `python` inside a Spark task: the process of the task runs the code itself.

Inputs and results pass as JSON, as with the other `python` tool. What the code prints goes to the
log of the Spark server. Results of batches stay JSON text (`msgspec.Raw`), because the task only
writes them to a file.
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
from noetl.spark.tasks.interrupts import run_interruptible
from noetl.tools.port import (
    NO_PLAYBOOK,
    Call,
    Failed,
    Log,
    Outcome,
    OutcomeListener,
    PlaybookKey,
    Success,
)
from noetl.tools.python import child as python_child
from noetl.tools.python.messages import PythonAnswer
from noetl.tools.python.tool import PYTHON_FACTS, encode_input, make_python_outcome, read_code

MAX_RESULT_BYTES = 64 << 20


class InlinePython:
    kind = "python"
    raw = frozenset({"code"})

    def __init__(self) -> None:
        self._programs = python_child.CompiledPrograms()

    async def run(self, call: Call) -> Outcome:
        outcomes: list[Success | Failed] = []

        def keep_outcome(nth: int, outcome: Success | Failed, seconds: float, at_once: int) -> None:
            outcomes.append(outcome)

        await self.run_many(call.config, (call.input,), lambda nth: call.log, keep_outcome)
        (outcome,) = outcomes
        if isinstance(outcome, Failed):
            return outcome
        return Success(_decode(outcome.value), outcome.facts)

    async def run_many(
        self,
        config: dict[str, Any],
        inputs: Sequence[dict[str, Any]],
        log: Callable[[int], Log],
        listener: OutcomeListener,
        *,
        at_once: int = 1,
        stop: bool = False,
        playbook: PlaybookKey = NO_PLAYBOOK,
    ) -> None:
        code = await read_code(config)
        if isinstance(code, Failure):
            for nth in range(len(inputs)):
                listener(nth, Failed(code), 0.0, 1)
            return
        variables = config.get("env") or {}
        env = {str(name): str(value) for name, value in variables.items() if value is not None}
        clock = asyncio.get_running_loop().time
        began = clock()
        # In a thread, because code that awaits starts an event loop of its own.
        outcomes = await run_interruptible(partial(self._run_inputs, code, env, inputs, stop))
        seconds = (clock() - began) / len(inputs)
        for nth, outcome in enumerate(outcomes):
            if outcome is not None:
                listener(nth, outcome, seconds, 1)

    def _run_inputs(
        self,
        code: str,
        env: dict[str, str],
        inputs: Sequence[dict[str, Any]],
        stop: bool,
    ) -> list[Success | Failed | None]:
        """Run the code for each input, one after the other. `stop` ends at the first failure."""
        outcomes: list[Success | Failed | None] = [None] * len(inputs)
        with _set_environment(env):
            for nth, arguments in enumerate(_copy_inputs(inputs)):
                outcome: Success | Failed
                if isinstance(arguments, Failed):
                    outcome = arguments
                else:
                    outcome = self._run_input(code, arguments)
                outcomes[nth] = outcome
                if stop and isinstance(outcome, Failed):
                    break
        return outcomes

    def _run_input(self, code: str, arguments: dict[str, Any]) -> Success | Failed:
        answer: Any = python_child.answer_input(
            self._programs, code, arguments, MAX_RESULT_BYTES, _encode_result
        )
        if type(answer) is msgspec.Raw:
            return Success(answer, PYTHON_FACTS)
        outcome = make_python_outcome(_decode_answer(answer), MAX_RESULT_BYTES)
        if isinstance(outcome, Failed):
            return outcome
        return Success(msgspec.Raw(msgspec.json.encode(outcome.value)), PYTHON_FACTS)


def _copy_inputs(inputs: Sequence[dict[str, Any]]) -> list[dict[str, Any] | Failed]:
    """Copies of the inputs, made through JSON, because the code may change them.

    All are encoded at once if all can be encoded; else each by itself.
    """
    data = encode_input(inputs)
    if not isinstance(data, Failed):
        copies: list[dict[str, Any] | Failed] = _decode(data)
        return copies
    texts = [encode_input(arguments) for arguments in inputs]
    return [text if isinstance(text, Failed) else _decode(text) for text in texts]


_decode = msgspec.json.Decoder().decode
_decode_answer = msgspec.json.Decoder(PythonAnswer).decode


def _encode_result(value: Any) -> msgspec.Raw | bytes:
    """Encode a result as JSON. orjson encodes plain data; `python_child` encodes or refuses the
    rest, and values with a null, which may be a NaN."""
    try:
        text = orjson.dumps(value, None, python_child.ORJSON_OPTIONS)
    except TypeError:
        return python_child.encode_value(value)
    if b"null" in text:
        return python_child.encode_rest(value, keys_are_text=True)
    # A copy, because orjson's result keeps a kilobyte of memory allocated: allocating that for
    # every item takes longer than encoding it.
    return msgspec.Raw(b"%b" % text)


@contextmanager
def _set_environment(env: dict[str, str]) -> Iterator[None]:
    """Set these environment variables, and restore the former ones afterwards."""
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

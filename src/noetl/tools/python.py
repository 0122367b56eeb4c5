"""`python`: code in a child process from a pool (`python_pool`); its result comes back as JSON, its prints are logs.

A child is isolated (`-I`), has an environment of its own, a folder that is emptied after every call, limits, and a fresh
namespace for every call. What stays from call to call is which modules are imported.
"""

import asyncio
import json
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

import msgspec

from noetl.model.errors import Failure
from noetl.tools.nursery import ForkServer
from noetl.tools.port import BatchOutcome, Call, Failed, Log, Outcome, Success
from noetl.tools.python_pool import PoolSettings, Program, PythonPool, PythonProcessCrashed

FACTS: dict[str, Any] = {"py": {"exit_code": 0}}  # of every call that its process has answered


class Python:
    kind = "python"
    raw = frozenset({"code"})

    def __init__(
        self, nursery: ForkServer | None = None, settings: PoolSettings | None = None
    ) -> None:
        self._nursery = nursery or ForkServer()
        self._settings = settings or PoolSettings()
        self._pool: PythonPool | None = None

    async def start(self) -> None:
        self._pool_here().start()

    async def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()
        await self._nursery.close()

    async def run(self, call: Call) -> Outcome:
        (outcome,) = (
            await self.run_many(call.config, (call.input,), lambda nth: call.log)
        ).outcomes
        assert outcome is not None
        return outcome

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
        env = tuple(
            sorted(
                (name, _text(value))
                for name, value in (config.get("env") or {}).items()
                if value is not None
            )
        )
        given: list[bytes | Failed | None] = [written(each) for each in inputs]
        if stop:
            first = next(
                (nth for nth, each in enumerate(given) if isinstance(each, Failed)), len(given)
            )
            given[first + 1 :] = [None] * len(given[first + 1 :])
        calls = [(data, nth) for nth, data in enumerate(given) if isinstance(data, bytes)]
        pool, program = self._pool_here(), Program(code, env)
        answers = iter(await pool.call(program, calls, log, at_once, stop))
        outcomes = [
            self._outcome(next(answers)) if isinstance(each, bytes) else each for each in given
        ]
        return BatchOutcome(outcomes, pool.mean(program) * len(calls) / 1_000_000)

    def _outcome(
        self, answer: dict[str, Any] | PythonProcessCrashed | None
    ) -> Success | Failed | None:
        if answer is None:
            return None
        if isinstance(answer, PythonProcessCrashed):
            return crashed("python", answer.status)
        return outcome_of(answer, self._settings.result_limit)

    def _pool_here(self) -> PythonPool:
        if self._pool is None or self._pool.loop is not asyncio.get_running_loop():
            self._pool = PythonPool(self._nursery, self._settings)
        return self._pool


async def source(config: dict[str, Any], field: str = "code") -> str | Failure:
    """The text of the field, or of the script named instead."""
    if isinstance(text := config.get(field), str):
        return text
    uri = (config.get("script") or {}).get("uri", "")
    if urlsplit(uri).scheme != "file":
        message = f"a script is read from file:// only, not {uri!r}"
        return Failure(code="SCRIPT_UNAVAILABLE", kind="config", message=message)
    path = Path(url2pathname(urlsplit(uri).path))
    try:
        return await asyncio.to_thread(path.read_text, "utf-8")
    except (OSError, UnicodeDecodeError) as error:
        return Failure(code="SCRIPT_UNAVAILABLE", kind="config", message=f"{uri}: {error}")


def crashed(kind: str, status: int) -> Failed:
    """The process that ran the tool is gone and gave no result."""
    how = (
        f"was killed by {signal_name(-status)}" if status < 0 else f"ended with exit code {status}"
    )
    message = f"the {kind} process {how} and gave no result"
    return Failed(
        Failure(code="TOOL_CRASHED", kind="crash", message=message), {"py": {"exit_code": status}}
    )


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def written(given: dict[str, Any] | Sequence[dict[str, Any]]) -> bytes | Failed:
    """An input, or some, as code gets them."""
    try:
        return msgspec.json.encode(given)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        return Failed(
            Failure(code="INPUT_NOT_JSON", kind="python", message=f"the input is not JSON: {error}")
        )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def outcome_of(answer: dict[str, Any], limit: int) -> Success | Failed:
    """From what `python_child.answer` says."""
    if "error" not in answer:
        return Success(answer["value"], FACTS)
    name = answer["error"]
    if name == "RESULT_TOO_LARGE":
        message = f"the result is larger than {limit} bytes; write it to a table or a file and return where it is"
        return Failed(Failure(code=name, kind="python", message=message), FACTS)
    if name == "RESULT_NOT_JSON":
        return Failed(Failure(code=name, kind="python", message=answer["message"]), FACTS)
    where = f" (line {answer['line']})" if answer.get("line") else ""
    detail = {"exception": name, "line": answer.get("line"), "trace": answer.get("trace", "")}
    message = f"{name}: {answer['message']}{where}"
    return Failed(
        Failure(code="PYTHON_ERROR", kind="python", message=message, detail=detail), FACTS
    )

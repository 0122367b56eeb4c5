"""`python`: runs code in a child process of a pool.

Its result is JSON; its prints are logs. A child is isolated (`-I`). It has its own environment,
limits, a folder that is emptied after every call, and a fresh namespace for every call. Only
imported modules stay from call to call, and a child takes calls of one playbook only.
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
from noetl.results.formats.records import is_fitting_head
from noetl.results.formats.shared_records import (
    DamagedRecords,
    SharedRecords,
    open_shared_records,
)
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
from noetl.tools.processes.fork_server import ForkServer
from noetl.tools.processes.limits import (
    LIMIT_KINDS,
    LimitTooHigh,
    StepLimits,
    find_limit_of_status,
)
from noetl.tools.processes.messages import ProcessLimits
from noetl.tools.python.calls import (
    Answer,
    AttachedInput,
    CallInput,
    Program,
    PythonProcessCrashed,
)
from noetl.tools.python.messages import PythonAnswer
from noetl.tools.python.pool import PythonPool
from noetl.tools.python.process import PoolSettings

MAX_PADDING_BYTES = 1 << 20  # bytes of shared memory between columns
PYTHON_FACTS: dict[str, Any] = {"py": {"exit_code": 0}}  # of every call that got an answer


class Python:
    kind = "python"
    raw = frozenset({"code"})
    takes_columns = True

    def __init__(
        self, fork_server: ForkServer | None = None, settings: PoolSettings | None = None
    ) -> None:
        self._fork_server = fork_server or ForkServer()
        self._settings = settings or PoolSettings()
        self._pool: PythonPool | None = None

    async def start(self) -> None:
        self._ensure_pool().start()

    async def close(self) -> None:
        pool = self._pool
        self._pool = None
        if pool is not None:
            pool.close()
        await self._fork_server.close()

    async def run(self, call: Call) -> Outcome:
        outcomes: list[Success | Failed] = []

        def keep_outcome(nth: int, outcome: Success | Failed, seconds: float, at_once: int) -> None:
            outcomes.append(outcome)

        call_input, shared = split_shared_input(call.input)
        try:
            await self._run_inputs(
                call.config,
                (call_input,),
                lambda nth: call.log,
                keep_outcome,
                playbook=call.playbook,
                attached=tuple(shared),
                columns=call.columns,
            )
        finally:
            for _, records in shared:
                records.close()
        (outcome,) = outcomes
        if isinstance(outcome, Success) and isinstance(outcome.value, SharedRecords):
            max_bytes = self._settings.result_limit + MAX_PADDING_BYTES
            return await asyncio.to_thread(_open_records, outcome.value, outcome.facts, max_bytes)
        return outcome

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
        await self._run_inputs(
            config, inputs, log, listener, playbook=playbook, at_once=at_once, stop=stop
        )

    async def _run_inputs(
        self,
        config: dict[str, Any],
        inputs: Sequence[dict[str, Any]],
        log: Callable[[int], Log],
        listener: OutcomeListener,
        *,
        playbook: PlaybookKey,
        at_once: int = 1,
        stop: bool = False,
        attached: tuple[AttachedInput, ...] = (),
        columns: bool = False,
    ) -> None:
        """Run the code on every input. `attached` belongs to the only input."""
        code = await read_code(config)
        if isinstance(code, Failure):
            for nth in range(len(inputs)):
                listener(nth, Failed(code), 0.0, 1)
            return
        calls: list[tuple[CallInput, int]] = []
        for nth, call_input in enumerate(inputs):
            encoded = encode_input(call_input)
            if isinstance(encoded, Failed):
                listener(nth, encoded, 0.0, 1)
                if stop:
                    break
            else:
                calls.append((CallInput(encoded, attached), nth))
        try:
            limits = self._settings.limits.choose_limits(config.get("limits"))
        except LimitTooHigh as error:
            for nth in range(len(inputs)):
                listener(nth, Failed(error.failure), 0.0, 1)
            return

        def pass_answer(nth: int, answer: Answer, seconds: float, running: int) -> None:
            listener(nth, self._make_outcome(answer, code, limits), seconds, running)

        own_limits = None if limits is self._settings.limits.usual else limits
        program = Program(playbook, code, _list_variables(config), own_limits)
        await self._ensure_pool().run_calls(
            program, calls, log, pass_answer, at_once=at_once, stop=stop, columns=columns
        )

    def _make_outcome(self, answer: Answer, code: str, limits: ProcessLimits) -> Success | Failed:
        """The outcome that an answer stands for. A failure says which limit was reached."""
        if isinstance(answer, PythonProcessCrashed):
            outcome: Success | Failed = crash_failure("python", answer.status)
            field = find_limit_of_status(answer.status)
        else:
            outcome = make_python_outcome(answer, self._settings.result_limit)
            field = find_reached_limit(answer, code) if answer.error else None
        if field is None or isinstance(outcome, Success):
            return outcome
        described = self._settings.limits.describe_reached(field, limits)
        if described is None:
            return outcome
        failure = msgspec.structs.replace(
            outcome.failure,
            code=LIMIT_KINDS[field].code,
            kind="limit",
            message=f"{outcome.failure.message}; {described}",
        )
        return Failed(failure, outcome.facts)

    def _ensure_pool(self) -> PythonPool:
        if self._pool is None or self._pool.loop is not asyncio.get_running_loop():
            self._pool = PythonPool(self._fork_server, self._settings)
        return self._pool


def make_python(fork_server: ForkServer, limits: StepLimits | None) -> Python:
    """The tool with these limits, or with the usual ones of this machine."""
    if limits is None:
        return Python(fork_server)
    return Python(fork_server, PoolSettings(limits=limits))


def split_shared_input(
    call_input: dict[str, Any],
) -> tuple[dict[str, Any], list[AttachedInput]]:
    """The input with null in place of its shared records, and these records with their paths."""
    shared: list[AttachedInput] = []
    plain: dict[str, Any] = {}
    for name, part in call_input.items():
        plain[name] = part
        if not isinstance(part, SharedRecords):
            continue
        if part.head.at is None:
            plain[name] = None
            shared.append(([name], part))
        else:
            plain[name] = part.head.rest
            shared.append(([name, part.head.at], part))
    return plain, shared


def _open_records(shared: SharedRecords, facts: dict[str, Any], max_bytes: int) -> Success | Failed:
    """The outcome with the records of a child."""
    try:
        records = open_shared_records(shared, max_bytes)
    except DamagedRecords as error:
        message = f"the records of the result are damaged: {error}"
        return Failed(Failure(code="RESULT_NOT_JSON", kind="python", message=message), facts)
    finally:
        shared.close()
    if not is_fitting_head(records.head):
        return Success(records.value(), facts)
    return Success(records, facts)


def _list_variables(config: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    variables = config.get("env") or {}
    texts = [(name, _to_text(value)) for name, value in variables.items() if value is not None]
    return tuple(sorted(texts))


def find_reached_limit(answer: PythonAnswer, code: str) -> str | None:
    """The limit of the process that the exception of a call stands for.

    Error 11 is also that of a socket without data, so the code, or the library that it called, must
    speak of forks.
    """
    if answer.error == "MemoryError" or answer.message.startswith("[Errno 12]"):
        return "memory"
    if answer.message.startswith("[Errno 24]"):
        return "open_files"
    if answer.message.startswith("[Errno 27]"):
        return "file_size"
    if answer.message.startswith("[Errno 11]") and "fork" in answer.trace + code:
        return "processes"
    if answer.message == "can't start new thread":
        return "processes"
    return None


async def read_code(config: dict[str, Any], field: str = "code") -> str | Failure:
    """The text of the field, or else the text of the file that `script` names."""
    text = config.get(field)
    if isinstance(text, str):
        return text
    script = config.get("script") or {}
    uri = script.get("uri", "")
    if urlsplit(uri).scheme != "file":
        message = f"a script is read from file:// only, not {uri!r}"
        return Failure(code="SCRIPT_UNAVAILABLE", kind="config", message=message)
    path = Path(url2pathname(urlsplit(uri).path))
    try:
        return await asyncio.to_thread(path.read_text, "utf-8")
    except (OSError, UnicodeDecodeError) as error:
        return Failure(code="SCRIPT_UNAVAILABLE", kind="config", message=f"{uri}: {error}")


def crash_failure(kind: str, status: int) -> Failed:
    """The failure of a call when its process has ended without a result."""
    if status < 0:
        how = f"was killed by {find_signal_name(-status)}"
    else:
        how = f"ended with exit code {status}"
    message = f"the {kind} process {how} and gave no result"
    failure = Failure(code="TOOL_CRASHED", kind="crash", message=message)
    return Failed(failure, {"py": {"exit_code": status}})


def find_signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def encode_input(value: dict[str, Any] | Sequence[dict[str, Any]]) -> bytes | Failed:
    """Encode one input or several as JSON for the code."""
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        message = f"the input is not JSON: {error}"
        return Failed(Failure(code="INPUT_NOT_JSON", kind="python", message=message))


def _to_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value)


def make_python_outcome(answer: PythonAnswer, limit: int) -> Success | Failed:
    """The outcome that an answer of `python_child` stands for."""
    name = answer.error
    if name is None:
        return Success(answer.value, PYTHON_FACTS)
    if name == "RESULT_TOO_LARGE":
        message = f"the result is larger than {limit} bytes; write it to a table or a file and return where it is"
        failure = Failure(code=name, kind="python", message=message)
        return Failed(failure, PYTHON_FACTS)
    if name == "RESULT_NOT_JSON":
        failure = Failure(code=name, kind="python", message=answer.message)
        return Failed(failure, PYTHON_FACTS)
    message = f"{name}: {answer.message}"
    if answer.line:
        message += f" (line {answer.line})"
    detail = {
        "exception": name,
        "line": answer.line,
        "trace": answer.trace,
    }
    failure = Failure(code="PYTHON_ERROR", kind="python", message=message, detail=detail)
    return Failed(failure, PYTHON_FACTS)

"""`python`: code in a child process of its own, one per call; its result comes back as JSON over a pipe, its prints are logs.

The child is isolated (`-I`), leads its own process group and sees none of the worker's environment but what finding programs and
text needs; when the call ends, however it ends, the whole group is killed.
"""

import asyncio
import json
import os
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from noetl.model.errors import Failure
from noetl.tools.port import Call, Failed, Log, Outcome, Success

CHILD = str(Path(__file__).with_name("python_child.py"))
INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "VIRTUAL_ENV", "LD_LIBRARY_PATH")
RESULT_LIMIT = 64 * 1024 * 1024
LOG_LIMIT = 1024 * 1024
LINE_LIMIT = 64 * 1024


@dataclass(frozen=True, slots=True)
class Python:
    kind: str = "python"
    raw: frozenset[str] = frozenset({"code"})
    result_limit: int = RESULT_LIMIT

    async def run(self, call: Call) -> Outcome:
        code = await _code(call.config)
        if isinstance(code, Failure):
            return Failed(code)
        given = {key: value for key, value in (call.config.get("env") or {}).items() if value is not None}
        request = json.dumps({"code": code, "input": call.input}).encode()
        async with _Child(call.log, self.result_limit) as child:
            await child.start({key: _text(value) for key, value in given.items()})
            answer, exit_code = await child.answer(request)
        return _outcome(answer, exit_code, self.result_limit)


async def _code(config: dict[str, Any]) -> str | Failure:
    code, script = config.get("code"), config.get("script")
    if isinstance(code, str):
        return code
    uri = (script or {}).get("uri", "")
    if urlsplit(uri).scheme != "file":
        return Failure(
            code="SCRIPT_UNAVAILABLE", kind="config", message=f"a script is read from file:// only, not {uri!r}"
        )
    path = Path(url2pathname(urlsplit(uri).path))
    try:
        return await asyncio.to_thread(path.read_text, "utf-8")
    except OSError as error:
        return Failure(code="SCRIPT_UNAVAILABLE", kind="config", message=f"{uri}: {error.strerror or error}")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _outcome(answer: bytes | None, exit_code: int, limit: int) -> Outcome:
    facts = {"py": {"exit_code": exit_code}}
    if answer is None:
        message = f"the result is larger than {limit} bytes; write it to a table or a file and return where it is"
        return Failed(Failure(code="RESULT_TOO_LARGE", kind="python", message=message), facts)
    if not answer:
        how = (
            f"was killed by signal {signal.Signals(-exit_code).name}"
            if exit_code < 0
            else f"ended with exit code {exit_code}"
        )
        return Failed(
            Failure(code="PYTHON_EXIT", kind="python", message=f"the process {how} and gave no result"), facts
        )
    found = json.loads(answer)
    if "error" not in found:
        return Success(found["value"], facts)
    name = found["error"]
    if name == "RESULT_NOT_JSON":
        return Failed(Failure(code=name, kind="python", message=found["message"]), facts)
    where = f" (line {found['line']})" if found.get("line") else ""
    detail = {"exception": name, "line": found.get("line"), "trace": found.get("trace", "")}
    message = f"{name}: {found['message']}{where}"
    return Failed(Failure(code="PYTHON_ERROR", kind="python", message=message, detail=detail), facts)


class _Child:
    """One process from start to the death of its group."""

    def __init__(self, log: Log, limit: int) -> None:
        self._log = log
        self._limit = limit
        self._process: asyncio.subprocess.Process | None = None
        self._reader = asyncio.StreamReader()
        self._transport: asyncio.ReadTransport | None = None

    async def __aenter__(self) -> "_Child":
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._transport is not None:
            self._transport.close()
        if self._process is None:
            return
        with suppress(ProcessLookupError, PermissionError):  # the group is gone
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()

    async def start(self, env: dict[str, str]) -> None:
        inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
        reading, writing = os.pipe()
        try:
            loop = asyncio.get_running_loop()
            self._transport, _ = await loop.connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(self._reader), os.fdopen(reading, "rb", buffering=0)
            )
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-I", CHILD, str(writing),
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
                pass_fds=(writing,), start_new_session=True, env={**inherited, **env}, limit=LINE_LIMIT,
            )  # fmt: skip
        finally:
            os.close(writing)

    async def answer(self, request: bytes) -> tuple[bytes | None, int]:
        """What the child wrote to the pipe (None: too much) and its exit code."""
        process = self._process
        assert process is not None
        assert process.stdout is not None
        assert process.stderr is not None
        logs = [
            asyncio.ensure_future(self._follow("stdout", process.stdout)),
            asyncio.ensure_future(self._follow("stderr", process.stderr)),
        ]
        try:
            await self._send(process, request)
            answer = await self._read()
            if answer is None:
                return None, 0
            exit_code = await process.wait()
            await asyncio.wait(logs, timeout=1)  # a grandchild may keep them open; the group is killed next
            return answer, exit_code
        finally:
            for task in logs:
                task.cancel()
            await asyncio.gather(*logs, return_exceptions=True)

    @staticmethod
    async def _send(process: asyncio.subprocess.Process, request: bytes) -> None:
        assert process.stdin is not None
        try:
            process.stdin.write(request)
            await process.stdin.drain()
            process.stdin.close()
        except (BrokenPipeError, ConnectionResetError):  # it died while reading; its exit code tells
            pass

    async def _read(self) -> bytes | None:
        parts: list[bytes] = []
        size = 0
        while part := await self._reader.read(256 * 1024):
            size += len(part)
            if size > self._limit:
                return None
            parts.append(part)
        return b"".join(parts)

    async def _follow(self, name: str, stream: asyncio.StreamReader) -> None:
        left = LOG_LIMIT
        while True:
            try:
                line = await stream.readline()
            except ValueError:  # longer than LINE_LIMIT: dropped
                continue
            if not line:
                return
            if left > 0:
                self._log(name, line.decode("utf-8", "replace").rstrip("\n"))
            left -= len(line)
            if left <= 0 and left + len(line) > 0:
                self._log(name, f"(more than {LOG_LIMIT} bytes: the rest is not kept)")

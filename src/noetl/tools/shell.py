"""`shell`: commands one after the other, each a text for `sh -c` or a list of arguments; stops at the first that fails.

A value in a text never becomes part of it: `{{ x }}` turns into a reference to a variable, quoted as its place demands, and the
shell expands it without reading it again. Processes come from the nursery: a group and a folder of their own, an environment with
only what is declared, gone with everything they started when `run` returns.
"""

import asyncio
import os
import re
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from noetl.model.errors import Failure
from noetl.playbook.expressions import WORKER_LIMITS, Meter, text
from noetl.playbook.templates import Marked
from noetl.tools.nursery import ForkServer, MessageTooLarge, Process, ProcessLimits
from noetl.tools.port import Call, Failed, Outcome, Success
from noetl.tools.python import signal_name
from noetl.tools.python_pool import StreamLines

OUTPUT_LIMIT = 1024 * 1024  # bytes kept of each stream
TAIL = 800  # characters of it in an error
VARIABLE = "NOETL_VALUE_"


class CommandError(Exception):
    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.failure = Failure(code=code, kind="shell", message=message)


@dataclass(frozen=True, slots=True)
class ShellCommand:
    """`shown` is what the playbook says, without the values."""

    argv: list[str]
    shown: str | list[str]
    env: dict[str, str] = field(default_factory=dict)


class Shell:
    kind = "shell"
    raw = frozenset({"cmds"})

    def __init__(
        self, nursery: ForkServer | None = None, limits: ProcessLimits | None = None
    ) -> None:
        self._nursery = nursery or ForkServer()
        self._limits = limits or ProcessLimits()

    async def close(self) -> None:
        await self._nursery.close()

    async def run(self, call: Call) -> Outcome:
        env = {
            name: _text(value)
            for name, value in (call.config.get("env") or {}).items()
            if value is not None
        }
        done: list[dict[str, Any]] = []
        output = {1: "", 2: ""}
        try:
            for number, written in enumerate(call.config.get("cmds") or [], start=1):
                command = await _command(written, call)
                running = _Running(
                    self._nursery, self._limits, command, {**env, **command.env}, call
                )
                code, said = await running.result()
                output = {
                    stream: (output[stream] + said[stream])[:OUTPUT_LIMIT] for stream in output
                }
                done.append({"command": command.shown, "exit_code": code})
                if code != 0:
                    return Failed(_failure(number, code, said))
        except CommandError as error:
            return Failed(error.failure)
        return Success({"exit_code": 0, "stdout": output[1], "stderr": output[2], "commands": done})


def _text(value: Any) -> str:
    return text(Meter(WORKER_LIMITS), value)


def _failure(number: int, code: int, said: dict[int, str]) -> Failure:
    last = (said[2].strip() or said[1].strip()).rpartition("\n")[2][:200]
    how = f"was killed by {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
    message = f"command {number} {how}{f': {last}' if last else ''}"
    detail = {
        "exit_code": code,
        "command": number,
        "stdout": said[1][-TAIL:],
        "stderr": said[2][-TAIL:],
    }
    return Failure(code="SHELL_EXIT", kind="shell", message=message, detail=detail)


# ---- from what is written to what is run -------------------------------------------------------------------------------


async def _command(written: Any, call: Call) -> ShellCommand:
    if isinstance(written, list):
        parts = (
            written
            if call.rendering is None
            else [await call.rendering.value(part) for part in written]
        )
        argv = [_text(part) for part in parts]
        if not argv or not argv[0]:
            raise CommandError("SHELL_COMMAND", "a command without a program")
        return _without_zero(ShellCommand(argv, written))
    script, marks = (
        (str(written), []) if call.rendering is None else await call.rendering.marked(str(written))
    )
    made, env = referenced(script, marks)
    return _without_zero(ShellCommand(["/bin/sh", "-c", made], written, env))


def _without_zero(command: ShellCommand) -> ShellCommand:
    if any("\0" in part for part in (*command.argv, *command.env.values())):
        raise CommandError("SHELL_VALUE", "a value in a command cannot hold the character zero")
    return command


_TOKEN = re.compile(r"\\.|\$\(|\$\{|[\"'`()}#\n]", re.DOTALL)


def referenced(script: str, marks: list[Marked]) -> tuple[str, dict[str, str]]:
    """The script with a variable in place of every marker, and the variables."""
    if not marks:
        return script, {}
    private = marks[0].marker[0]
    marker = re.compile(f"{private}\\d+{private}")
    values = {mark.marker: mark for mark in marks}
    env: dict[str, str] = {}
    out: list[str] = []
    at, quotes = 0, _Quotes()
    for found in marker.finditer(script):
        piece = script[at : found.start()]
        quotes.read(piece)
        mark = values[found[0]]
        if mark.kind != "value":
            raise CommandError(
                "SHELL_VALUE", f"| {mark.kind} is for SQL; a value in a command is always data"
            )
        name = f"{VARIABLE}{len(env) + 1}"
        env[name] = _text(mark.value)
        out += [piece, quotes.around(name)]
        at = found.end()
    return "".join([*out, script[at:]]), env


class _Quotes:
    """In which quotes a place of a shell text stands. A mistake here costs a value its shape, never its being data."""

    def __init__(self) -> None:
        self._stack: list[str] = []
        self._last = " "  # the character before what comes next
        self._comment = False

    def read(self, piece: str) -> None:
        for found in _TOKEN.finditer(piece):
            token, before = found[0], piece[found.start() - 1] if found.start() else self._last
            self._token(token, before)
        self._last = piece[-1] if piece else "x"

    def _token(self, token: str, before: str) -> None:
        stack, top = self._stack, self._stack[-1] if self._stack else ""
        if self._comment:
            self._comment = token != "\n"
        elif top == "'":
            if token == "'":
                stack.pop()
        elif token in ('"', "`", "${", "$("):
            if token == top and token in ('"', "`"):
                stack.pop()
            else:
                stack.append(token)
        elif token == "'" and top != '"':
            stack.append(token)
        elif (token == ")" and top in ("$(", "(")) or (token == "}" and top == "${"):
            stack.pop()
        elif token == "(" and top != '"':
            stack.append(token)
        elif token == "#" and top != '"' and before in " \t\n;&|(":
            self._comment = True

    def around(self, name: str) -> str:
        top = next((quote for quote in reversed(self._stack) if quote != "${"), "")
        if top == "'":
            return f"'\"${{{name}}}\"'"
        return f"${{{name}}}" if top == '"' else f'"${{{name}}}"'


# ---- running -----------------------------------------------------------------------------------------------------------


class _Running:
    """One command: its output is followed while it runs."""

    def __init__(
        self,
        nursery: ForkServer,
        limits: ProcessLimits,
        command: ShellCommand,
        env: dict[str, str],
        call: Call,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._kept = {1: bytearray(), 2: bytearray()}
        self._lines = {1: StreamLines("stdout", call.log), 2: StreamLines("stderr", call.log)}
        out, out_end = os.pipe2(os.O_CLOEXEC)
        err, err_end = os.pipe2(os.O_CLOEXEC)
        self._streams = {1: out, 2: err}
        cwd = call.config.get("cwd")
        try:
            self._process: Process = nursery.spawn(
                "exec",
                [out_end, err_end],
                env,
                limits,
                argv=command.argv,
                cwd=None if cwd is None else str(cwd),
            )
        except MessageTooLarge:
            self._close()
            raise CommandError(
                "SHELL_TOO_LARGE", "the command and its values are too large: give a file's name"
            ) from None

    async def result(self) -> tuple[int, dict[int, str]]:
        for stream, descriptor in self._streams.items():
            os.set_blocking(descriptor, False)
            self._loop.add_reader(descriptor, self._read, stream)
        try:
            code = await asyncio.shield(self._process.ended)
        except asyncio.CancelledError:
            await self._process.stop()
            raise
        finally:
            for stream, descriptor in self._streams.items():
                self._loop.remove_reader(descriptor)
                while self._read(stream):
                    pass
                self._lines[stream].end()
            self._close()
        return code, {
            stream: kept.decode("utf-8", "replace") for stream, kept in self._kept.items()
        }

    def _read(self, stream: int) -> bool:
        try:
            data = os.read(self._streams[stream], 64 * 1024)
        except BlockingIOError:
            return False
        if not data:
            self._loop.remove_reader(self._streams[stream])
            return False
        kept = self._kept[stream]
        kept += data[: OUTPUT_LIMIT - len(kept)]
        self._lines[stream].add(data)
        return True

    def _close(self) -> None:
        for descriptor in self._streams.values():
            with suppress(OSError):
                os.close(descriptor)

"""`shell`: runs commands in order, each a text for `sh -c` or a list of arguments.

The first failure ends it. A value never becomes part of a text: `{{ x }}` turns into a reference to
an environment variable, quoted for its place, and the shell does not parse what it expands. The
fork server makes the processes: each has its own process group and folder, and only the declared
environment. The processes and all that they started are gone when `run` returns.
"""

import asyncio
import os
import re
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from noetl.model.errors import Failure
from noetl.template.limits import WORKER_LIMITS, Meter
from noetl.template.model import MarkedValue
from noetl.template.writing import format_as_text
from noetl.tools.port import Call, Failed, Outcome, Success
from noetl.tools.processes.fork_server import ForkServer, MessageTooLarge, Process
from noetl.tools.processes.limits import (
    LIMIT_KINDS,
    LimitTooHigh,
    StepLimits,
    find_limit_of_status,
    make_step_limits,
)
from noetl.tools.processes.messages import ProcessLimits
from noetl.tools.python.printed_lines import StreamLines
from noetl.tools.python.tool import find_signal_name

MAX_OUTPUT_BYTES = 1024 * 1024  # bytes kept of each stream
ERROR_TAIL_CHARACTERS = 800  # characters of it in an error
# How the C library, shells and Python name a limit of their process.
LIMIT_WORDS = {
    "memory": ("Cannot allocate memory", "MemoryError"),
    "processes": ("Cannot fork", "fork: Resource temporarily unavailable", "fork: retry"),
    "file_size": ("File too large", "File size limit exceeded"),
    "open_files": ("Too many open files",),
}
VALUE_VARIABLE_PREFIX = "NOETL_VALUE_"


class CommandError(Exception):
    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.failure = Failure(code=code, kind="shell", message=message)


@dataclass(frozen=True, slots=True)
class ShellCommand:
    """`shown` is the command as the playbook writes it, without the values."""

    argv: list[str]
    shown: str | list[str]
    env: dict[str, str] = field(default_factory=dict)


class Shell:
    kind = "shell"
    raw = frozenset({"cmds"})

    def __init__(
        self, fork_server: ForkServer | None = None, limits: StepLimits | None = None
    ) -> None:
        self._fork_server = fork_server or ForkServer()
        self._limits = limits or make_step_limits()

    async def close(self) -> None:
        await self._fork_server.close()

    async def run(self, call: Call) -> Outcome:
        variables = call.config.get("env") or {}
        env = {name: _to_text(value) for name, value in variables.items() if value is not None}
        done: list[dict[str, Any]] = []
        stdout = stderr = ""
        try:
            limits = self._limits.choose_limits(call.config.get("limits"))
            templates = call.config.get("cmds") or []
            for number, template in enumerate(templates, start=1):
                command = await _render_command(template, call)
                command_env = {**env, **command.env}
                running = _RunningCommand(self._fork_server, limits, command, command_env, call)
                code, output = await running.wait_for_result()
                stdout = _join_output(stdout, output[1], call)
                stderr = _join_output(stderr, output[2], call)
                done.append({"command": command.shown, "exit_code": code})
                if code != 0:
                    return Failed(self._make_failure(number, code, output, limits))
        except (CommandError, LimitTooHigh) as error:
            return Failed(error.failure)
        return Success({"exit_code": 0, "stdout": stdout, "stderr": stderr, "commands": done})

    def _make_failure(
        self, number: int, code: int, output: dict[int, str], limits: ProcessLimits
    ) -> Failure:
        """The failure of a command. It says which limit was reached."""
        failure = _make_exit_failure(number, code, output)
        field = find_limit_of_status(code) or _find_reached_limit(output[2])
        described = None if field is None else self._limits.describe_reached(field, limits)
        if field is None or described is None:
            return failure
        message = f"{failure.message}; {described}"
        return replace(failure, code=LIMIT_KINDS[field].code, kind="limit", message=message)


def _find_reached_limit(stderr: str) -> str | None:
    """The limit that the last line of a program's errors speaks of."""
    last_line = stderr.strip().rpartition("\n")[2]
    for limit, words in LIMIT_WORDS.items():
        if any(each in last_line for each in words):
            return limit
    return None


def _join_output(before: str, output: str, call: Call) -> str:
    joined = before + output
    if len(joined) <= MAX_OUTPUT_BYTES:
        return joined
    return call.clean_cut(joined[:MAX_OUTPUT_BYTES])


def _to_text(value: Any) -> str:
    return format_as_text(Meter(WORKER_LIMITS), value)


def _make_exit_failure(number: int, code: int, output: dict[int, str]) -> Failure:
    """The failure of a command. Its message quotes the last line of the output."""
    if code < 0:
        how = f"was killed by {find_signal_name(-code)}"
    else:
        how = f"ended with exit code {code}"
    message = f"command {number} {how}"
    printed = output[2].strip() or output[1].strip()
    last_line = printed.rpartition("\n")[2][:200]
    if last_line:
        message += f": {last_line}"
    detail = {
        "exit_code": code,
        "command": number,
        "stdout": output[1][-ERROR_TAIL_CHARACTERS:],
        "stderr": output[2][-ERROR_TAIL_CHARACTERS:],
    }
    return Failure(code="SHELL_EXIT", kind="shell", message=message, detail=detail)


# ---- from the playbook's text to a command -------------------------------------------------------


async def _render_command(template: Any, call: Call) -> ShellCommand:
    """Render one of the playbook's commands."""
    rendering = call.rendering
    if isinstance(template, list):
        parts = template
        if rendering is not None:
            parts = [await rendering.value(part) for part in template]
        argv = [_to_text(part) for part in parts]
        if not argv or not argv[0]:
            raise CommandError("SHELL_COMMAND", "a command without a program")
        return _refuse_nul(ShellCommand(argv, template))
    script = str(template)
    marks: list[MarkedValue] = []
    if rendering is not None:
        script, marks = await rendering.marked(script)
    script, env = replace_markers(script, marks)
    return _refuse_nul(ShellCommand(["/bin/sh", "-c", script], template, env))


def _refuse_nul(command: ShellCommand) -> ShellCommand:
    """Refuse a NUL character, which no argument or variable can hold."""
    texts = (*command.argv, *command.env.values())
    if any("\0" in text for text in texts):
        raise CommandError("SHELL_VALUE", "a value in a command cannot hold the character zero")
    return command


_TOKEN = re.compile(r"\\.|\$\(|\$\{|[\"'`()}#\n]", re.DOTALL)


def replace_markers(script: str, marks: list[MarkedValue]) -> tuple[str, dict[str, str]]:
    """Replace every marker of the script by a variable. Returns the script and the variables."""
    if not marks:
        return script, {}
    private = marks[0].marker[0]
    marker = re.compile(f"{private}\\d+{private}")
    marks_by_marker = {mark.marker: mark for mark in marks}
    env: dict[str, str] = {}
    pieces: list[str] = []
    position = 0
    quotes = _Quotes()
    for match in marker.finditer(script):
        piece = script[position : match.start()]
        quotes.read_piece(piece)
        mark = marks_by_marker[match[0]]
        if mark.kind != "value":
            raise CommandError(
                "SHELL_VALUE", f"| {mark.kind} is for SQL; a value in a command is always data"
            )
        name = f"{VALUE_VARIABLE_PREFIX}{len(env) + 1}"
        env[name] = _to_text(mark.value)
        pieces += [piece, quotes.quote_variable(name)]
        position = match.end()
    pieces.append(script[position:])
    return "".join(pieces), env


class _Quotes:
    """Tracks in which quotes a place of a shell text is.

    If it is wrong, the shell may split or expand a value, but never runs it: the value stays data.
    """

    def __init__(self) -> None:
        self._stack: list[str] = []
        self._last = " "  # the character before the next piece
        self._comment = False

    def read_piece(self, piece: str) -> None:
        for match in _TOKEN.finditer(piece):
            start = match.start()
            before = piece[start - 1] if start else self._last
            self._handle_token(match[0], before)
        self._last = piece[-1] if piece else "x"

    def _handle_token(self, token: str, before: str) -> None:
        stack = self._stack
        top = stack[-1] if stack else ""
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

    def quote_variable(self, name: str) -> str:
        """A reference to the variable, quoted for this place."""
        quotes = [quote for quote in self._stack if quote != "${"]
        top = quotes[-1] if quotes else ""
        if top == "'":
            return f"'\"${{{name}}}\"'"
        if top == '"':
            return f"${{{name}}}"
        return f'"${{{name}}}"'


# ---- running -------------------------------------------------------------------------------------


class _RunningCommand:
    """One running command. Its output is logged while it runs."""

    def __init__(
        self,
        fork_server: ForkServer,
        limits: ProcessLimits,
        command: ShellCommand,
        env: dict[str, str],
        call: Call,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._output_bytes = {1: bytearray(), 2: bytearray()}
        self._clean_cut = call.clean_cut
        self._lines = {
            1: StreamLines("stdout", call.log),
            2: StreamLines("stderr", call.log),
        }
        out, out_end = os.pipe2(os.O_CLOEXEC)
        err, err_end = os.pipe2(os.O_CLOEXEC)
        self._streams = {1: out, 2: err}
        cwd = call.config.get("cwd")
        try:
            self._process: Process = fork_server.spawn(
                "exec",
                [out_end, err_end],
                env,
                limits,
                argv=command.argv,
                cwd=None if cwd is None else str(cwd),
            )
        except MessageTooLarge:
            self._close_streams()
            raise CommandError(
                "SHELL_TOO_LARGE", "the command and its values are too large: give a file's name"
            ) from None

    async def wait_for_result(self) -> tuple[int, dict[int, str]]:
        """Wait for the end. Returns the exit code and the text of each stream."""
        for stream, descriptor in self._streams.items():
            os.set_blocking(descriptor, False)
            self._loop.add_reader(descriptor, self._read_stream, stream)
        try:
            code = await asyncio.shield(self._process.ended)
        except asyncio.CancelledError:
            await self._process.stop()
            raise
        finally:
            for stream, descriptor in self._streams.items():
                self._loop.remove_reader(descriptor)
                while self._read_stream(stream):
                    pass
                self._lines[stream].end()
            self._close_streams()
        return code, {stream: self._decode_output(stream) for stream in self._output_bytes}

    def _decode_output(self, stream: int) -> str:
        kept = self._output_bytes[stream]
        text = kept.decode("utf-8", "replace")
        if len(kept) < MAX_OUTPUT_BYTES:
            return text
        return self._clean_cut(text)  # the stream may have gone on

    def _read_stream(self, stream: int) -> bool:
        """Read once from a stream. False if there is nothing to read."""
        try:
            data = os.read(self._streams[stream], 64 * 1024)
        except BlockingIOError:
            return False
        if not data:
            self._loop.remove_reader(self._streams[stream])
            return False
        kept = self._output_bytes[stream]
        kept += data[: MAX_OUTPUT_BYTES - len(kept)]
        self._lines[stream].add(data)
        return True

    def _close_streams(self) -> None:
        for descriptor in self._streams.values():
            with suppress(OSError):
                os.close(descriptor)

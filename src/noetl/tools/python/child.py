"""Runs in a child process of the python tool: takes calls from a socket and executes their code.

It sends back values and prints. It imports no module of noetl but `column_buffers`, and nothing heavy,
since every idle child has it in memory. orjson takes 1.5 MB, which all children share.

Long lists of records do not go as JSON, but as columns in shared memory. Its descriptor goes beside the
message over the socket.

A request is one frame of JSON (`PythonRequestFields`). With `stop`, the first input that fails ends the
request. If there are several inputs, the child takes one byte from the token
pipe before each of them. The worker may take the bytes back, so it always knows which inputs were
started. Answers are frames too: a kind, a length and a payload. They say how long their calls ran.

After each call the child restores the state of the process. If it cannot (the call has left
threads, processes or descriptors), it reports that and ends, and another child gets the next call.
"""

import _signal  # type: ignore[import-not-found]  # like `signal`, but without enums, which are slow
import _thread
import ast
import base64
import builtins
import gc
import io
import json
import os
import resource
import signal
import socket
import struct
import sys
import time
from array import array
from collections.abc import Callable, Iterator
from typing import Any, TypedDict

import orjson

# The fork server registers this module, so this does not import the package.
from noetl.results.formats.column_buffers import (
    RecordsFields,
    find_long_list,
    read_shared_records,
    share_records,
)

CODE_FILE_NAME = "<code>"
WHOLE_INPUT_NAMES = (
    "input",
    "args",
    "input_data",
)  # names under which the code sees its whole input
HEADER = struct.Struct(">BI")  # kind, length of the payload
ANSWERS_FRAME, LOG_FRAME, LAST_FRAME = 1, 2, 3
LOG_HEADER = struct.Struct(">IB")  # input, stream
SOCKET_DESCRIPTOR, TOKEN_DESCRIPTOR = 3, 4
FLUSH_AFTER_S = 0.001  # seconds that an answer may wait for others
FLUSH_AT_BYTES = 64 * 1024
CO_COROUTINE = 0x80
MAX_LEAKED_DESCRIPTORS = 64  # descriptors that code may leave open before its process is replaced
MAX_COMPILED_PROGRAMS = 64
MAX_DESCRIPTORS = 64  # beside one message
MIN_COLLECTED_BYTES = (
    1 << 20
)  # bytes of a request, after which the memory of its calls is freed at once
ANCILLARY_BYTES = socket.CMSG_SPACE(4 * MAX_DESCRIPTORS)
MSG_CMSG_CLOEXEC = int(socket.MSG_CMSG_CLOEXEC)
ERROR_PREFIX = b'{"error"'  # how the answer of a failed call begins
RLIMITS_BY_NAME = {
    "memory": resource.RLIMIT_DATA,
    "file_size": resource.RLIMIT_FSIZE,
    "open_files": resource.RLIMIT_NOFILE,
    "processes": resource.RLIMIT_NPROC,
}
MAX_TOLD_CHARS = 2_000  # characters of an error's message, and of the end of its traceback
MISSING = object()


class AttachedFields(TypedDict):
    """Records in shared memory, and their place in the input."""

    path: list[str]
    layout: RecordsFields


class PythonRequestFields(TypedDict):
    """`attached` belongs to the only input. With `columns`, an answer may be in shared memory."""

    code: str
    env: dict[str, str] | None
    inputs: list[Any]
    limit: int
    stop: bool
    columns: bool
    attached: list[AttachedFields]
    limits: dict[str, int | None] | None


class PythonFailureFields(TypedDict):
    error: str
    message: str
    line: int | None
    trace: str


# ---- serving -------------------------------------------------------------------------------------


def serve(memory_limit: int, limits: dict[str, int | None], other_threads: int) -> None:
    """Answer requests until the worker closes the socket, or the process cannot be used again.

    The process has `limits`. Its user has `other_threads`, which count as processes.
    """
    gc.enable()
    connection = socket.socket(fileno=SOCKET_DESCRIPTOR)
    state = ProcessState(memory_limit)
    limiter = ProcessLimiter(limits, other_threads)
    programs = CompiledPrograms()
    while (received := receive_request(connection)) is not None:
        body, descriptors = received
        request = json.loads(body)
        attach_records(request, descriptors)
        limiter.use_limits(request["limits"])
        batch = InputBatch(request, state, programs, connection)
        batch.is_large = len(body) > MIN_COLLECTED_BYTES or bool(descriptors)
        spoiled = batch.run() or limiter.find_change()
        batch.send_last(spoiled)
        if spoiled is not None:
            return


class ProcessLimiter:
    """Sets the limits of requests, as far as the limits of the process allow."""

    def __init__(self, limits: dict[str, int | None], other_threads: int) -> None:
        self.own_limits = limits
        self.other_threads = other_threads
        self.limits = limits
        self.expected = self.read_limits()

    def read_limits(self) -> list[tuple[int, int]]:
        return [resource.getrlimit(kind) for kind in RLIMITS_BY_NAME.values()]

    def use_limits(self, wanted: dict[str, int | None] | None) -> None:
        """Set the limits of a request; None for those of the process."""
        limits = wanted or self.own_limits
        if limits != self.limits:
            self.limits = limits
            for name, kind in RLIMITS_BY_NAME.items():
                value = limits[name]
                _, hard = resource.getrlimit(kind)
                if value is None:
                    value = hard
                elif name == "processes":
                    value += self.other_threads
                if hard != resource.RLIM_INFINITY:
                    value = min(value, hard)
                resource.setrlimit(kind, (value, hard))
            self.expected = self.read_limits()
        seconds = limits["cpu_seconds"]
        if seconds is not None:
            used = resource.getrusage(resource.RUSAGE_SELF)
            soft = int(used.ru_utime + used.ru_stime) + seconds + 1
            resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.RLIM_INFINITY))

    def find_change(self) -> str | None:
        """Return "changed limits" if the code has changed them."""
        return None if self.read_limits() == self.expected else "changed limits"


def receive_request(connection: socket.socket) -> tuple[bytes, list[int]] | None:
    """Read one request and its descriptors; None at the end of the stream.

    The first read may take all there is: the worker sends the next request after the last answer.
    """
    data, descriptors = receive_beginning(connection)
    if not data:
        return None
    while len(data) < 4:
        data += os.read(SOCKET_DESCRIPTOR, 4)
    size = int.from_bytes(data[:4], "big")
    parts = [data[4:]]
    left = size + 4 - len(data)
    while left > 0:
        data = os.read(SOCKET_DESCRIPTOR, min(left, 1 << 20))
        if not data:
            return None
        parts.append(data)
        left -= len(data)
    return b"".join(parts), descriptors


def receive_beginning(connection: socket.socket) -> tuple[bytes, list[int]]:
    """Read the first bytes of a request, and the descriptors that come with them."""
    data, ancillary, _, _ = connection.recvmsg(64 * 1024, ANCILLARY_BYTES, MSG_CMSG_CLOEXEC)
    return data, [descriptor for _, _, part in ancillary for descriptor in array("i", part)]


def attach_records(request: PythonRequestFields, descriptors: list[int]) -> None:
    """Put the records that came as shared memory into the input."""
    if not descriptors and not request["attached"]:
        return
    gc.disable()  # the rows are many objects, none of which is garbage
    try:
        for attached, descriptor in zip(request["attached"], descriptors, strict=True):
            parent: Any = request["inputs"][0]
            *names, last = attached["path"]
            for name in names:
                parent = parent[name]
            parent[last] = read_shared_records(descriptor, attached["layout"])
            os.close(descriptor)
    finally:
        gc.enable()


def send_frame(kind: int, *parts: bytes) -> None:
    data = b"".join((HEADER.pack(kind, sum(map(len, parts))), *parts))
    send_rest(data, os.write(SOCKET_DESCRIPTOR, data))


def send_rest(data: bytes, sent: int) -> None:
    """Send the data after its first `sent` bytes."""
    while sent < len(data):
        sent += os.write(SOCKET_DESCRIPTOR, memoryview(data)[sent:])


class InputBatch:
    """Runs the inputs of one request, in order, while there are tokens."""

    def __init__(
        self,
        request: PythonRequestFields,
        state: "ProcessState",
        programs: "CompiledPrograms",
        connection: socket.socket,
    ) -> None:
        self.connection = connection
        self.code = request["code"]
        self.env = request["env"]
        self.inputs = request["inputs"]
        self.limit = request["limit"]
        self.stop = request["stop"]
        self.encode: Callable[[Any], bytes] = encode_value
        if request["columns"]:
            self.encode = self.encode_or_share
        self.descriptors: list[int] = []  # of the collected answers
        self.is_large = False
        self.stopped = False
        self.state = state
        self.programs = programs
        self.answers: list[bytes] = []
        self.size = 0
        self.flushed = time.monotonic()

    def run(self) -> str | None:
        """Run the inputs. Returns the reason why the process cannot be used again, or None."""
        state = self.state
        inputs = self.inputs
        state.use_environment(self.env or {})
        several = len(inputs) > 1
        for number in range(len(inputs)):
            if several and not take_token():
                break
            call_input = inputs[number]
            inputs[number] = None  # the memory is freed when the code drops its input
            state.stdout.raw_log.number = state.stderr.raw_log.number = number
            encoded = answer_input(self.programs, self.code, call_input, self.limit, self.encode)
            if os.getpid() != SERVING_PID:
                os._exit(0)  # the code has forked: only the original process answers
            state.flush_streams()
            self.add_answer(encoded)
            self.stopped = self.stop and encoded.startswith(ERROR_PREFIX)
            if self.is_large:
                # Functions of the code refer to the names of the call, which refer to them and to its input.
                call_input = None
                gc.collect()
                trim_heap(0)
            spoiled = state.restore()
            if spoiled is not None:
                return spoiled
            if self.stopped:
                break
        return state.find_memory_excess()

    def encode_or_share(self, value: Any) -> bytes:
        encoded, descriptor = encode_or_share(value, self.limit)
        if descriptor is not None:
            self.descriptors.append(descriptor)
            self.is_large = True
        return encoded

    def add_answer(self, encoded: bytes) -> None:
        """Collect an answer. Send the collected ones if they are old or large, or have a descriptor.

        They are also sent before memory is freed, which takes a while.
        """
        self.answers.append(encoded)
        self.size += len(encoded)
        now = time.monotonic()
        is_due = now - self.flushed > FLUSH_AFTER_S or self.size > FLUSH_AT_BYTES
        if is_due or self.is_large:
            micros = int((now - self.flushed) * 1e6)
            end = b'],"micros":%d}' % micros
            parts = (b'{"answers":[', b",".join(self.answers), end)
            if self.descriptors:
                self.send_with_descriptors(*parts)
            else:
                send_frame(ANSWERS_FRAME, *parts)
            self.answers = []
            self.size = 0
            self.flushed = now

    def send_with_descriptors(self, *parts: bytes) -> None:
        """Send answers, and beside them the descriptors of the shared memory that they name."""
        data = b"".join((HEADER.pack(ANSWERS_FRAME, sum(map(len, parts))), *parts))
        send_rest(data, socket.send_fds(self.connection, [data], self.descriptors))
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors = []

    def send_last(self, spoiled: str | None) -> None:
        """Send the remaining answers, their duration and the reason why the process ends."""
        micros = int((time.monotonic() - self.flushed) * 1e6)
        reason = b"null"
        if spoiled is not None:
            reason = json.dumps(spoiled).encode()
        stopped = b"true" if self.stopped else b"false"
        facts = b'],"micros":%d,"spoiled":%b,"stopped":%b}' % (micros, reason, stopped)
        send_frame(LAST_FRAME, b'{"answers":[', b",".join(self.answers), facts)


def trim_heap(kept_bytes: int) -> None:
    """Give free memory back to the system. The fork server replaces this if the C library can."""


def take_token() -> bool:
    """Take a token. False if the worker has taken the rest back."""
    try:
        return len(os.read(TOKEN_DESCRIPTOR, 1)) == 1
    except BlockingIOError:
        return False


class PrintedFrames(io.RawIOBase):
    """Sends what the code prints as frames between the answers."""

    def __init__(self, stream: int) -> None:
        self.stream = stream
        self.number = 0

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self.stream

    def isatty(self) -> bool:
        return False

    def write(self, data: Any) -> int:
        text = bytes(data)
        if (
            os.getpid() != SERVING_PID
        ):  # the code has forked: treat it like any process that it starts
            return os.write(self.stream, text)
        send_frame(LOG_FRAME, LOG_HEADER.pack(self.number, self.stream), text)
        return len(text)


class ChildStdout(io.TextIOWrapper):
    def __init__(self, stream: int) -> None:
        self.raw_log = PrintedFrames(stream)
        super().__init__(
            io.BufferedWriter(self.raw_log),
            encoding="utf-8",
            errors="backslashreplace",
            line_buffering=True,
        )


SERVING_PID = 0


class ProcessState:
    """The state of the process before a call. Finds what a call has changed, and restores it."""

    def __init__(self, memory_limit: int) -> None:
        global SERVING_PID
        SERVING_PID = os.getpid()
        self.memory_limit = memory_limit
        self.stdout, self.stderr = ChildStdout(1), ChildStdout(2)
        self.stdin = open(os.devnull)  # noqa: SIM115 - for the rest of the process
        self.folder = os.getcwd()
        self.own_environment = self.environment = dict(os.environ)
        self.expected_environment = dict(os.environ._data)  # type: ignore[attr-defined]  # the encoded form of `environment`
        self.builtins = dict(vars(builtins))
        self.path = list(sys.path)
        self.signals = [
            (int(number), _signal.getsignal(number))
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM)
        ]
        self.recursion = sys.getrecursionlimit()
        sys.argv = [CODE_FILE_NAME]
        self._install_streams()
        self.written = stat_folder(".")
        self.descriptors = find_free_descriptor()

    def _install_streams(self) -> None:
        sys.stdout = self.stdout
        sys.stderr = self.stderr
        sys.stdin = self.stdin

    def flush_streams(self) -> None:
        """Flush the prints, so that they come before the answer."""
        for stream in (self.stdout, self.stderr):
            if not stream.closed:
                stream.flush()

    def use_environment(self, more: dict[str, str]) -> None:
        wanted = {**self.own_environment, **more}
        if wanted != self.environment:
            self.environment = wanted
            self.expected_environment = {}
        self.restore_environment()

    def restore_environment(self) -> None:
        # Runs after every call: one comparison of the encoded forms is fast.
        current: dict[Any, Any] = os.environ._data  # type: ignore[attr-defined]
        if current == self.expected_environment:
            return
        for name in list(os.environ):
            if name not in self.environment:
                del os.environ[name]
        os.environ.update(self.environment)
        self.expected_environment = dict(current)

    def restore(self) -> str | None:
        """Restore the state before the last call. Returns what cannot be restored, or None."""
        if _thread._count():
            return "threads"
        if has_live_children():
            return "processes"
        if self.stdout.closed or self.stderr.closed:
            return "closed streams"
        self._install_streams()
        self.restore_environment()
        if vars(builtins) != self.builtins or sys.path != self.path:
            return "changed interpreter"
        if sys.getrecursionlimit() != self.recursion:
            return "changed interpreter"
        if sys.gettrace() is not None or not gc.isenabled():
            return "changed interpreter"
        if any(_signal.getsignal(number) is not known for number, known in self.signals):
            return "changed signals"
        if find_free_descriptor() > self.descriptors + MAX_LEAKED_DESCRIPTORS:
            return "open files"
        return self._restore_folder()

    def _restore_folder(self) -> str | None:
        """Return to the folder, which must be empty."""
        try:
            if stat_folder(".") == self.written:
                return None
            os.chdir(self.folder)
            if os.listdir(self.folder):
                return "files"  # the fork server removes them after the process has ended
            self.written = stat_folder(".")
        except OSError:
            return "working directory"
        return None

    def find_memory_excess(self) -> str | None:
        """Return "memory" if the process uses more than its limit."""
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        if peak <= self.memory_limit:
            return None
        with open("/proc/self/statm") as file:
            pages = int(file.read().split()[1])
        if pages * resource.getpagesize() <= self.memory_limit:
            return None
        return "memory"


def has_live_children() -> bool:
    """Whether processes that the code started still run.

    Their orphans count too: this process is the reaper of its descendants.
    """
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                return True
        except ChildProcessError:
            return False


def stat_folder(folder: str) -> tuple[int, int, int]:
    """Changes when the folder is another one, or when files are added or removed."""
    stat = os.stat(folder)
    return stat.st_dev, stat.st_ino, stat.st_mtime_ns


def find_free_descriptor() -> int:
    """The lowest free descriptor."""
    descriptor = os.dup(SOCKET_DESCRIPTOR)
    os.close(descriptor)
    return descriptor


# ---- one call ------------------------------------------------------------------------------------


class CompiledPrograms:
    """Compiled code by its text."""

    def __init__(self) -> None:
        self.kept: dict[str, tuple[Any, bool]] = {}

    def get(self, code: str) -> tuple[Any, bool]:
        compiled = self.kept.get(code)
        if compiled is None:
            if len(self.kept) >= MAX_COMPILED_PROGRAMS:
                self.kept.clear()
            compiled = self.kept[code] = compile_program(code)
        return compiled


def compile_program(code: str) -> tuple[Any, bool]:
    """Compile the code. Returns the code object, and whether the code returns at top level."""
    tree = ast.parse(code, CODE_FILE_NAME)
    returned = has_top_level_return(tree)
    if returned:
        tree = wrap_in_function(tree)
    compiled = compile(tree, CODE_FILE_NAME, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    return compiled, returned


def answer_input(
    programs: CompiledPrograms,
    code: str,
    call_input: dict[str, Any],
    limit: int,
    written: Any = None,
) -> bytes:
    """Run the code on one input, and encode its value or its failure.

    `written` encodes the value, if it is passed.
    """
    try:
        value = execute_program(programs.get(code), call_input)
        encoded = (written or encode_value)(value)
    except SystemExit as end:
        if end.code in (None, 0):
            encoded = b'{"value":null}'
        else:
            message = f"the code ended with exit({end.code!r})"
            encoded = _encode_failure(make_python_failure("SystemExit", message))
    except BaseException as error:  # the code may raise anything
        encoded = _encode_failure(
            make_python_failure(type(error).__name__, _format_exception_text(error), error)
        )
    if len(encoded) > limit:
        return _encode_failure(make_python_failure("RESULT_TOO_LARGE", ""))
    return encoded


def _format_exception_text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # the exception's own `__str__` raises
        return ""


def _encode_failure(facts: PythonFailureFields) -> bytes:
    return json.dumps(facts).encode()  # the text is ASCII, also if the message has lone surrogates


def _strip_own_frames(error: BaseException) -> BaseException:
    """Remove the frames of this module: those before the frames of the playbook's code."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != CODE_FILE_NAME:
        trace = trace.tb_next
    error.__traceback__ = trace
    return error


def find_line(error: BaseException) -> int | None:
    """The line of the playbook's code that raised the error."""
    import traceback

    if isinstance(error, SyntaxError) and error.lineno:
        return error.lineno
    frames = traceback.extract_tb(error.__traceback__)
    for frame in reversed(frames):
        if frame.filename == CODE_FILE_NAME:
            return frame.lineno
    return None


def make_python_failure(
    name: str, message: str, error: BaseException | None = None
) -> PythonFailureFields:
    import traceback

    line = None
    trace = ""
    if error is not None:
        line = find_line(error)
        lines = traceback.format_exception(_strip_own_frames(error))
        trace = "".join(lines)
        if len(trace) > MAX_TOLD_CHARS:
            trace = f"…{trace[1 - MAX_TOLD_CHARS :]}"
    if len(message) > MAX_TOLD_CHARS:
        message = (
            f"{message[: MAX_TOLD_CHARS - 1]}…"  # the mark of a cut: secrets are removed beside it
        )
    return {
        "error": _replace_surrogates(name),
        "message": _replace_surrogates(message),
        "line": line,
        "trace": _replace_surrogates(trace),
    }


def _replace_surrogates(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def encode_value(value: Any) -> bytes:
    """Encode a value as the answer of a call.

    orjson is fast and refuses keys that are not text, but it writes NaN as null. So a result with
    `null` in it, or one that orjson refuses, goes to the strict encoder.
    """
    try:
        encoded = orjson.dumps(value, _to_json_type_unless_basic, ORJSON_OPTIONS)
    except TypeError:
        return encode_rest(value)
    if b"null" not in encoded:
        return b'{"value":%b}' % encoded
    return encode_rest(value, keys_are_text=True)


def encode_or_share(value: Any, limit: int) -> tuple[bytes, int | None]:
    """Encode a value as the answer of a call, with its records in shared memory if they fit columns.

    Returns the answer, and the descriptor of the shared memory, which the caller closes.
    """
    found = find_long_list(value)
    if found is None:
        return encode_value(value), None
    rows, at = found
    rest = b'{"value":null}'
    if at is not None:
        rest = encode_value({**value, at: None})
    shared = None
    if not rest.startswith(ERROR_PREFIX):
        shared = share_records(rows, limit - len(rest))
    if shared is None:
        return encode_value(value), None
    descriptor, layout = shared
    facts = json.dumps({"at": at, "layout": layout}).encode()
    return b"%b,%b" % (rest[:-1], facts[1:]), descriptor


def encode_rest(value: Any, *, keys_are_text: bool = False) -> bytes:
    """Encode a value that orjson refuses, or may have written wrongly."""
    try:
        if not keys_are_text:
            refuse_equal_keys(value)
        return b'{"value":%b}' % STRICT_ENCODER.encode(value).encode()
    except (TypeError, ValueError, RecursionError) as error:
        message = f"the result is not JSON: {explain_not_json(value, error)}"
        return _encode_failure(make_python_failure("RESULT_NOT_JSON", message))


def refuse_equal_keys(value: Any, name: str = "result") -> None:
    """Raise ValueError if a map has two keys that are equal in JSON, such as 1 and '1'.

    JSON has text keys only, so one of the two values would be lost.
    """
    for place, part in walk_parts(value):
        if not isinstance(part, dict):
            continue
        keys_by_text: dict[str, Any] = {}
        for key in part:
            text = _key_in_json(key)
            if text in keys_by_text:
                keys = f"the keys {keys_by_text[text]!r} and {key!r}"
                raise ValueError(
                    f"{_format_place(place, name)} has {keys}, which are equal in JSON; rename one of them"
                )
            keys_by_text[text] = key


def _key_in_json(key: Any) -> Any:
    if key is None:
        return "null"
    if isinstance(key, bool):
        return "true" if key else "false"
    if isinstance(key, int):
        return int.__repr__(key)
    if isinstance(key, float):
        return float.__repr__(key)
    return key


def explain_not_json(value: Any, error: BaseException) -> str:
    """Why a value is not JSON. Names the place of a NaN or infinity, which the error does not."""
    place = find_non_finite(value)
    if place is None:
        return _format_exception_text(error)
    return f"{place} is NaN or infinite; give None instead"


def find_non_finite(value: Any) -> str | None:
    """The place of the first NaN or infinity."""
    for place, part in walk_parts(value):
        if isinstance(part, float) and part - part != 0:
            return _format_place(place)
    return None


def walk_parts(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the value and all its parts, each with its place: the parent's place and a name.

    No part is entered twice, because a list may contain itself.
    """
    waiting: list[tuple[Any, Any]] = [(None, value)]
    seen: set[int] = set()
    while waiting:
        place, value = waiting.pop()
        yield place, value
        if not isinstance(value, dict | list | tuple) or id(value) in seen:
            continue
        seen.add(id(value))
        parts: list[tuple[Any, Any]]
        if isinstance(value, dict):
            parts = list(value.items())
        else:
            parts = list(enumerate(value))
        waiting.extend(((place, name), part) for name, part in reversed(parts))


def _format_place(place: Any, name: str = "result") -> str:
    names = []
    while place:
        place, key = place
        names.append(f"[{key!r}]")
    return name + "".join(reversed(names))


def _to_json_type_unless_basic(value: Any) -> Any:
    """The `default` of orjson. Subclasses of basic types are left to the strict encoder."""
    if isinstance(value, str | int | float | dict | list | tuple):
        raise TypeError
    return to_json_type(value)


def _to_json_type_checked(value: Any) -> Any:
    replaced = to_json_type(value)
    if isinstance(replaced, dict | list):
        refuse_equal_keys(replaced, type(value).__name__)
    return replaced


def to_json_type(value: Any) -> Any:
    """Replace a value of a type that JSON lacks by one that it has.

    Covers what data code often returns: times, sets, bytes, and numbers and frames of data
    libraries.
    """
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode()
    for name in ("isoformat", "to_dicts", "to_pylist", "tolist", "_asdict"):
        method = getattr(value, name, None)
        if callable(method):
            return method()
    type_name = type(value).__name__
    if type_name == "DataFrame" and callable(getattr(value, "to_dict", None)):
        return value.to_dict("records")
    if hasattr(value, "__dataclass_fields__"):
        return {name: getattr(value, name) for name in value.__dataclass_fields__}
    if type_name in ("Decimal", "UUID", "Path", "PosixPath", "Fraction"):
        return str(value)
    raise TypeError(f"{type_name} cannot be written as JSON")


ORJSON_OPTIONS = (
    orjson.OPT_PASSTHROUGH_DATETIME
    | orjson.OPT_PASSTHROUGH_DATACLASS
    | orjson.OPT_PASSTHROUGH_SUBCLASS
)
STRICT_ENCODER = json.JSONEncoder(
    default=_to_json_type_checked, allow_nan=False, ensure_ascii=False, separators=(",", ":")
)


def execute_program(compiled_program: tuple[Any, bool], call_input: dict[str, Any]) -> Any:
    """Run a compiled program on one input and return its value.

    The value is what the code returns at top level, the variable `result`, or what `main` returns.
    """
    compiled, returned = compiled_program
    names: dict[str, Any] = dict.fromkeys(WHOLE_INPUT_NAMES, call_input)
    names["__name__"] = "__noetl__"
    names["__builtins__"] = builtins
    names.update(call_input)
    result_before = names.get("result")
    if compiled.co_flags & CO_COROUTINE:
        await_if_needed(eval(compiled, names))  # noqa: S307 - this process exists to run the playbook's code
    else:
        exec(compiled, names)  # noqa: S102 - as above
    if returned:
        return await_if_needed(names["__noetl__"]())
    if "result" in names and names["result"] is not result_before:
        return names["result"]
    entry = names.get("main")
    if callable(entry):
        positional, named = bind_arguments(entry, call_input)
        return await_if_needed(entry(*positional, **named))
    if "result" in call_input:
        return None
    return names.get("result")


def await_if_needed(value: Any) -> Any:
    """The value, or what it yields if it is awaitable."""
    if not hasattr(type(value), "__await__"):
        return value
    import asyncio

    async def wait() -> Any:
        return await value

    return asyncio.run(wait())


def bind_arguments(entry: Any, call_input: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of `main`: inputs by name.

    A parameter called input, args or input_data gets the whole input. So does a single parameter
    that no input has the name of.
    """
    import inspect

    parameters = list(inspect.signature(entry).parameters.values())
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return [], dict(call_input)
    named: dict[str, Any] = {}
    for parameter in parameters:
        name = parameter.name
        if name in call_input or name in WHOLE_INPUT_NAMES:
            named[name] = call_input.get(name, call_input)
    if len(parameters) != 1 or named:
        return [], named
    (parameter,) = parameters
    if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_POSITIONAL:
        return [call_input], {}
    return [], named


# ---- top-level return ----------------------------------------------------------------------------

NAMING_NODES = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.ExceptHandler,
    ast.MatchAs,
    ast.MatchStar,
)
SCOPE_NODES = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Lambda,
    ast.ListComp,
    ast.SetComp,
    ast.DictComp,
    ast.GeneratorExp,
)


def list_top_level_nodes(tree: ast.AST) -> list[ast.AST]:
    """The nodes in the module's own scope."""
    nodes: list[ast.AST] = []
    for child in ast.iter_child_nodes(tree):
        nodes.append(child)
        if not isinstance(child, SCOPE_NODES):
            nodes += list_top_level_nodes(child)
    return nodes


def has_top_level_return(tree: ast.Module) -> bool:
    return any(isinstance(node, ast.Return) for node in list_top_level_nodes(tree))


def wrap_in_function(tree: ast.Module) -> ast.Module:
    """Make the code the body of a function, so that `return` is allowed at its top level.

    The names that the code binds are declared global: they stay names of the module.
    """
    nodes = list_top_level_nodes(tree)
    function = ast.parse("def __noetl__(): pass", CODE_FILE_NAME).body[0]
    if any(isinstance(node, ast.Await | ast.AsyncFor | ast.AsyncWith) for node in nodes):
        function = ast.parse("async def __noetl__(): pass", CODE_FILE_NAME).body[0]
    assert isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
    function.body = tree.body
    names = _find_bound_names(nodes)
    if names:
        function.body = [ast.Global(sorted(names)), *tree.body]
    return ast.fix_missing_locations(ast.Module([function], tree.type_ignores))


def _find_bound_names(nodes: list[ast.AST]) -> set[str]:
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
            names.add(node.id)
        elif isinstance(node, NAMING_NODES) and node.name:
            names.add(node.name)
        elif isinstance(node, ast.alias) and node.name != "*":
            names.add(node.asname or node.name.partition(".")[0])
    return names

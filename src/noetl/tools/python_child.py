"""Runs inside a child process of the python tool: takes calls from a socket, executes their code, sends values and prints back.

Stands alone: it imports nothing of ours and nothing heavy, since every idle child holds it in memory. orjson is not heavy: it
takes 1.5 MB, which all children share.

A request is one frame: JSON `{code, env, inputs, limit, stop}`; `stop` ends it at the first input that fails. Before each of
several inputs the child takes one byte from the token pipe; the worker may take them back, so whether an input is started is
never in doubt. What goes back are frames too: a kind, a length, a payload. Whatever a call changes about the process is put
back before the next one; where that cannot be done (threads, processes, descriptors left behind) the child says so and ends:
the next call gets another one.
"""

import _signal  # type: ignore[import-not-found]  # the same without enums
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
import struct
import sys
import time
from collections.abc import Iterator
from typing import Any

import orjson

FILE = "<code>"
WHOLE = ("input", "args", "input_data")  # names under which the code sees its whole input
HEADER = struct.Struct(">BI")  # kind, length of what follows
ANSWERS, LOG, LAST = 1, 2, 3
LOG_HEADER = struct.Struct(">IB")  # input, stream
SOCKET, TOKENS = 3, 4
FLUSH_AFTER = 0.001  # seconds that answers may wait for others
FLUSH_AT = 64 * 1024
CO_COROUTINE = 0x80
SPARE_DESCRIPTORS = 64  # that code may leave open before its process is given up
KEPT_PROGRAMS = 64
ERROR = b'{"error"'  # how the answer of a failed call begins
MISSING = object()


# ---- serving -----------------------------------------------------------------------------------------------------------


def serve(memory_limit: int, cpu_seconds: int | None) -> None:
    """Until the worker closes the socket, or the process is no longer fit for another call."""
    gc.enable()
    state = State(memory_limit)
    programs = Programs()
    while (body := received()) is not None:
        request = json.loads(body)
        if cpu_seconds is not None:
            used = resource.getrusage(resource.RUSAGE_SELF)
            soft = int(used.ru_utime + used.ru_stime) + cpu_seconds + 1
            resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.RLIM_INFINITY))
        batch = InputBatch(request, state, programs)
        spoiled = batch.run()
        batch.end(spoiled)
        if spoiled is not None:
            return


def received() -> bytes | None:
    """One request; None at the end of the stream. The worker sends the next one only after the answer to this."""
    data = os.read(SOCKET, 64 * 1024)
    if not data:
        return None
    while len(data) < 4:
        data += os.read(SOCKET, 4)
    parts, left = [data[4:]], int.from_bytes(data[:4], "big") + 4 - len(data)
    while left > 0:
        data = os.read(SOCKET, min(left, 1 << 20))
        if not data:
            return None
        parts.append(data)
        left -= len(data)
    return b"".join(parts)


def send(kind: int, *parts: bytes) -> None:
    data = b"".join((HEADER.pack(kind, sum(map(len, parts))), *parts))
    sent = os.write(SOCKET, data)
    while sent < len(data):
        sent += os.write(SOCKET, memoryview(data)[sent:])


class InputBatch:
    """Inputs of one request, in order, while there are tokens."""

    def __init__(self, request: dict[str, Any], state: "State", programs: "Programs") -> None:
        self.code = request["code"]
        self.env = request["env"]
        self.inputs = request["inputs"]
        self.limit = request["limit"]
        self.stop = request["stop"]
        self.stopped = False
        self.state = state
        self.programs = programs
        self.answers: list[bytes] = []
        self.size = 0
        self.flushed = self.began = time.monotonic()

    def run(self) -> str | None:
        """Why the process cannot be used again, or None."""
        state, inputs = self.state, self.inputs
        state.use_environment(self.env or {})
        several = len(inputs) > 1
        for number, given in enumerate(inputs):
            if several and not taken():
                break
            inputs[number] = None  # what the code drops is freed at once
            state.stdout.raw_log.number = state.stderr.raw_log.number = number
            made = answer(self.programs, self.code, given, self.limit)
            if os.getpid() != PID:
                os._exit(0)  # a fork that came out of the code: it is not the one to answer
            state.flush()
            self.add(made)
            self.stopped = self.stop and made.startswith(ERROR)
            if (spoiled := state.restore()) is not None:
                return spoiled
            if self.stopped:
                break
        return state.too_large()

    def add(self, made: bytes) -> None:
        self.answers.append(made)
        self.size += len(made)
        now = time.monotonic()
        if now - self.flushed > FLUSH_AFTER or self.size > FLUSH_AT:
            send(ANSWERS, b"[", b",".join(self.answers), b"]")
            self.answers, self.size, self.flushed = [], 0, now

    def end(self, spoiled: str | None) -> None:
        micros = int((time.monotonic() - self.began) * 1e6)
        why = b"null" if spoiled is None else json.dumps(spoiled).encode()
        stopped = b"true" if self.stopped else b"false"
        facts = b'],"micros":%d,"spoiled":%b,"stopped":%b}' % (micros, why, stopped)
        send(LAST, b'{"answers":[', b",".join(self.answers), facts)


def taken() -> bool:
    try:
        return len(os.read(TOKENS, 1)) == 1
    except BlockingIOError:
        return False


class PrintedFrames(io.RawIOBase):
    """What the code prints, as frames between the answers."""

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
            os.getpid() != PID
        ):  # a fork of the code's own: its output is that of any process it starts
            return os.write(self.stream, text)
        send(LOG, LOG_HEADER.pack(self.number, self.stream), text)
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


PID = 0


class State:
    """The process as a call finds it, and how to tell that it was changed."""

    def __init__(self, memory_limit: int) -> None:
        global PID
        PID = os.getpid()
        self.memory_limit = memory_limit
        self.stdout, self.stderr = ChildStdout(1), ChildStdout(2)
        self.stdin = open(os.devnull)  # noqa: SIM115 - for the rest of the process
        self.folder = os.getcwd()
        self.own_environment = self.environment = dict(os.environ)
        self.held = dict(os.environ._data)  # type: ignore[attr-defined]  # as it was when it was last as wanted
        self.builtins = dict(vars(builtins))
        self.path = list(sys.path)
        self.signals = [
            (int(number), _signal.getsignal(number))
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM)
        ]
        self.recursion = sys.getrecursionlimit()
        sys.argv = [FILE]
        self._streams()
        self.written = written(".")
        self.descriptors = lowest_free()

    def _streams(self) -> None:
        sys.stdout, sys.stderr, sys.stdin = self.stdout, self.stderr, self.stdin

    def flush(self) -> None:
        """What was printed comes before the answer."""
        for stream in (self.stdout, self.stderr):
            if not stream.closed:
                stream.flush()

    def use_environment(self, more: dict[str, str]) -> None:
        wanted = {**self.own_environment, **more}
        if wanted != self.environment:
            self.environment, self.held = wanted, {}
        self.restore_environment()

    def restore_environment(self) -> None:
        held: dict[Any, Any] = os.environ._data  # type: ignore[attr-defined]  # one comparison: this runs after every call
        if held == self.held:
            return
        for name in list(os.environ):
            if name not in self.environment:
                del os.environ[name]
        os.environ.update(self.environment)
        self.held = dict(held)

    def restore(self) -> str | None:
        """Put back what the last call changed; or say what cannot be."""
        if _thread._count():
            return "threads"
        if processes_left():
            return "processes"
        if self.stdout.closed or self.stderr.closed:
            return "closed streams"
        self._streams()
        self.restore_environment()
        if (
            vars(builtins) != self.builtins
            or sys.path != self.path
            or sys.getrecursionlimit() != self.recursion
        ):
            return "changed interpreter"
        if sys.gettrace() is not None or not gc.isenabled():
            return "changed interpreter"
        if any(_signal.getsignal(number) is not known for number, known in self.signals):
            return "changed signals"
        if lowest_free() > self.descriptors + SPARE_DESCRIPTORS:
            return "open files"
        return self._files()

    def _files(self) -> str | None:
        try:
            if written(".") == self.written:
                return None
            os.chdir(self.folder)
            if os.listdir(self.folder):
                return "files"  # removed with the process
            self.written = written(".")
        except OSError:
            return "working directory"
        return None

    def too_large(self) -> str | None:
        if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 <= self.memory_limit:
            return None
        with open("/proc/self/statm") as file:
            resident = int(file.read().split()[1]) * resource.getpagesize()
        return "memory" if resident > self.memory_limit else None


def processes_left() -> bool:
    """Orphans are ours too: the process is their reaper."""
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                return True
        except ChildProcessError:
            return False


def written(folder: str) -> tuple[int, int, int]:
    found = os.stat(folder)
    return found.st_dev, found.st_ino, found.st_mtime_ns


def lowest_free() -> int:
    found = os.dup(SOCKET)
    os.close(found)
    return found


# ---- one call ------------------------------------------------------------------------------------------------------------


class Programs:
    """Compiled code by its text."""

    def __init__(self) -> None:
        self.kept: dict[str, tuple[Any, bool]] = {}

    def get(self, code: str) -> tuple[Any, bool]:
        found = self.kept.get(code)
        if found is None:
            if len(self.kept) >= KEPT_PROGRAMS:
                self.kept.clear()
            found = self.kept[code] = program(code)
        return found


def program(code: str) -> tuple[Any, bool]:
    """The code object, and whether it returns at top level."""
    tree = ast.parse(code, FILE)
    returned = returns(tree)
    made = compile(
        wrapped(tree) if returned else tree, FILE, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    )
    return made, returned


def answer(
    programs: Programs, code: str, given: dict[str, Any], limit: int, written: Any = None
) -> bytes:
    """`written` makes the answer of a value; `encode` unless told otherwise."""
    try:
        made = (written or encode)(execute(programs.get(code), given))
    except SystemExit as end:
        made = (
            b'{"value":null}'
            if end.code in (None, 0)
            else _failed(failure("SystemExit", f"the code ended with exit({end.code!r})"))
        )
    except BaseException as error:  # whatever the code raises is its answer
        made = _failed(failure(type(error).__name__, _message(error), error))
    return made if len(made) <= limit else _failed({"error": "RESULT_TOO_LARGE", "message": ""})


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # an exception whose own text raises
        return ""


def _failed(found: dict[str, Any]) -> bytes:
    return json.dumps(found).encode()  # ASCII: whatever the message holds


def _authors(error: BaseException) -> BaseException:
    """Without the frames that called the author's code."""
    while (
        error.__traceback__ is not None and error.__traceback__.tb_frame.f_code.co_filename != FILE
    ):
        error.__traceback__ = error.__traceback__.tb_next
    return error


def line_of(error: BaseException) -> int | None:
    """Of the author's code."""
    import traceback

    if isinstance(error, SyntaxError) and error.lineno:
        return error.lineno
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == FILE
    ]
    return lines[-1] if lines else None


def failure(name: str, message: str, error: BaseException | None = None) -> dict[str, Any]:
    import traceback

    line = line_of(error) if error else None
    trace = "".join(traceback.format_exception(_authors(error)))[-2000:] if error else ""
    clean = [text.encode("utf-8", "replace").decode() for text in (name, message[:2000], trace)]
    return {"error": clean[0], "message": clean[1], "line": line, "trace": clean[2]}


def encode(value: Any) -> bytes:
    """orjson is fast and takes no key that is not text, but writes NaN as null: `ENCODER` writes or refuses the rest."""
    try:
        made = orjson.dumps(value, _plain_unless_basic, STRICT)
    except TypeError:
        return encode_rest(value)
    if b"null" not in made:
        return b'{"value":%b}' % made
    return encode_rest(value, keys_are_text=True)


def encode_rest(value: Any, *, keys_are_text: bool = False) -> bytes:
    try:
        if not keys_are_text:
            refuse_equal_keys(value)
        return b'{"value":%b}' % ENCODER.encode(value).encode()
    except (TypeError, ValueError, RecursionError) as error:
        return _failed(
            {
                "error": "RESULT_NOT_JSON",
                "message": f"the result is not JSON: {why(value, error)}"[:2000],
            }
        )


def refuse_equal_keys(value: Any, name: str = "result") -> None:
    """JSON has text keys only. Of two keys of a map that are written alike, such as 1 and '1', one value would be lost."""
    for place, part in parts_of(value):
        if not isinstance(part, dict):
            continue
        known: dict[str, Any] = {}
        for key in part:
            written = _key_in_json(key)
            if written in known:
                keys = f"the keys {known[written]!r} and {key!r}"
                raise ValueError(
                    f"{_place(place, name)} has {keys}, which are equal in JSON; rename one of them"
                )
            known[written] = key


def _key_in_json(key: Any) -> Any:
    if key is None:
        return "null"
    if isinstance(key, bool):
        return "true" if key else "false"
    if isinstance(key, int):
        return int.__repr__(key)
    return float.__repr__(key) if isinstance(key, float) else key


def why(value: Any, error: BaseException) -> str:
    """What JSON would not take, with its place where that is a number: the error does not say it."""
    place = endless(value)
    return _message(error) if place is None else f"{place} is NaN or infinite; give None instead"


def endless(value: Any) -> str | None:
    """Where the first number is that JSON does not have."""
    for place, part in parts_of(value):
        if isinstance(part, float) and part - part != 0:
            return _place(place)
    return None


def parts_of(value: Any) -> Iterator[tuple[Any, Any]]:
    """The value and all parts of it, each with its place: that of the whole, and its name there. No part is looked into twice,
    for a list may be in itself."""
    waiting: list[tuple[Any, Any]] = [(None, value)]
    seen: set[int] = set()
    while waiting:
        place, value = waiting.pop()
        yield place, value
        if not isinstance(value, dict | list | tuple) or id(value) in seen:
            continue
        seen.add(id(value))
        parts = list(value.items() if isinstance(value, dict) else enumerate(value))
        waiting.extend(((place, name), part) for name, part in reversed(parts))


def _place(place: Any, name: str = "result") -> str:
    names = []
    while place:
        place, key = place
        names.append(f"[{key!r}]")
    return name + "".join(reversed(names))


def _plain_unless_basic(value: Any) -> Any:
    """For orjson, which leaves subclasses of basic types to us: `ENCODER` writes them as what they are."""
    if isinstance(value, str | int | float | dict | list | tuple):
        raise TypeError
    return plain(value)


def _plain_with_distinct_keys(value: Any) -> Any:
    made = plain(value)
    if isinstance(made, dict | list):
        refuse_equal_keys(made, type(value).__name__)
    return made


def plain(value: Any) -> Any:
    """What JSON lacks and data code returns all the time: moments, sets, bytes, numbers and frames of data libraries."""
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode()
    for name in ("isoformat", "to_dicts", "to_pylist", "tolist", "_asdict"):
        if callable(method := getattr(value, name, None)):
            return method()
    if type(value).__name__ == "DataFrame" and callable(getattr(value, "to_dict", None)):
        return value.to_dict("records")
    if hasattr(value, "__dataclass_fields__"):
        return {name: getattr(value, name) for name in value.__dataclass_fields__}
    if type(value).__name__ in ("Decimal", "UUID", "Path", "PosixPath", "Fraction"):
        return str(value)
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


STRICT = (
    orjson.OPT_PASSTHROUGH_DATETIME
    | orjson.OPT_PASSTHROUGH_DATACLASS
    | orjson.OPT_PASSTHROUGH_SUBCLASS
)
ENCODER = json.JSONEncoder(
    default=_plain_with_distinct_keys, allow_nan=False, ensure_ascii=False, separators=(",", ":")
)


def execute(found: tuple[Any, bool], given: dict[str, Any]) -> Any:
    made, returned = found
    names: dict[str, Any] = dict.fromkeys(WHOLE, given)
    names["__name__"], names["__builtins__"] = "__noetl__", builtins
    names.update(given)
    before = names.get("result")
    if made.co_flags & CO_COROUTINE:
        settled(eval(made, names))  # noqa: S307 - running the playbook's code is what this process is for
    else:
        exec(made, names)  # noqa: S102 - as above
    if returned:
        return settled(names["__noetl__"]())
    if "result" in names and names["result"] is not before:
        return names["result"]
    if callable(entry := names.get("main")):
        positional, named = bound(entry, given)
        return settled(entry(*positional, **named))
    return names.get("result") if "result" not in given else None


def settled(value: Any) -> Any:
    if not hasattr(type(value), "__await__"):
        return value
    import asyncio

    async def wait() -> Any:
        return await value

    return asyncio.run(wait())


def bound(entry: Any, given: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Arguments of `main`: inputs by name; a parameter called input, args or input_data gets them all, as does a lone one."""
    import inspect

    parameters = list(inspect.signature(entry).parameters.values())
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return [], dict(given)
    named = {
        p.name: given.get(p.name, given) for p in parameters if p.name in given or p.name in WHOLE
    }
    missing = [
        p
        for p in parameters
        if p.name not in named and p.default is p.empty and p.kind is not p.VAR_POSITIONAL
    ]
    if len(parameters) == 1 and missing:
        return [given], {}
    return [], named


# ---- top-level return --------------------------------------------------------------------------------------------------

NAMED = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.ExceptHandler,
    ast.MatchAs,
    ast.MatchStar,
)
SCOPES = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Lambda,
    ast.ListComp,
    ast.SetComp,
    ast.DictComp,
    ast.GeneratorExp,
)


def top_level(tree: ast.AST) -> list[ast.AST]:
    """Nodes of the module's own scope."""
    found: list[ast.AST] = []
    for child in ast.iter_child_nodes(tree):
        found.append(child)
        if not isinstance(child, SCOPES):
            found += top_level(child)
    return found


def returns(tree: ast.Module) -> bool:
    return any(isinstance(node, ast.Return) for node in top_level(tree))


def wrapped(tree: ast.Module) -> ast.Module:
    """The code as the body of a function, whose names stay the module's, so that a top-level `return` has a meaning."""
    own = top_level(tree)
    names: set[str] = set()
    for node in own:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
            names.add(node.id)
        elif isinstance(node, NAMED) and node.name:
            names.add(node.name)
        elif isinstance(node, ast.alias) and node.name != "*":
            names.add(node.asname or node.name.partition(".")[0])
    waits = any(isinstance(node, ast.Await | ast.AsyncFor | ast.AsyncWith) for node in own)
    function = ast.parse(
        "async def __noetl__(): pass" if waits else "def __noetl__(): pass", FILE
    ).body[0]
    assert isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
    declared: list[ast.stmt] = [ast.Global(sorted(names))] if names else []
    function.body = declared + tree.body
    return ast.fix_missing_locations(ast.Module([function], tree.type_ignores))

"""Turns exceptions of Spark and of user code into failures that name the cause in one line.

Stack traces of the JVM are removed.
"""

import re
from typing import Any

import grpc  # type: ignore[import-untyped]  # it has no types
from msgspec.structs import replace
from pyspark.errors import PySparkException
from pyspark.errors.exceptions.base import PythonException

from noetl.model.errors import Failure
from noetl.spark.errors import (
    CheckFailed,
    ImpossibleRequest,
    LocatedError,
    OutputUncertain,
    ResultNotJson,
    ValueTooLarge,
)
from noetl.tools.python import child as python_child

LOST = "SPARK_LOST"
INTERRUPTED = "SPARK_INTERRUPTED"
OUT_OF_MEMORY = "SPARK_OUT_OF_MEMORY"
MAX_TEXT_CHARS, MAX_LINE_CHARS, MAX_TRACE_CHARS = 900, 500, 1_500  # characters of an error
_TRACE = re.compile(
    r"\n+JVM stacktrace:.*|\n+\s+at [\w.$]+[(/].*|\n+Driver stacktrace:.*", re.DOTALL
)
# The query plan, which Spark appends to an error of a statement.
_PLAN = re.compile(r"(SQLSTATE: \w+(?:; line \d+ pos \d+)?);\n.*", re.DOTALL)
_ABORTED = re.compile(
    r"^Job aborted due to stage failure: .*most recent failure: .*? (?:\([^()]*\)): ", re.DOTALL
)
# The name of a Java exception, which precedes its message.
_JAVA_CLASS = re.compile(r"\(?\b(?:[a-z][\w$]*\.){2,}[A-Z][\w$]*(?:Exception|Error)\)?:? ?")
_NO_FILE_SYSTEM = "No FileSystem for scheme"
_NO_DRIVER = "; this Spark cannot reach such a store: give a result, which goes to ours by itself, or use a profile that can"
_UNCERTAIN_REMEDY = (
    "some of the rows may be there, and a second copy would double them: look at the path, then start the step again "
    "or use mode: overwrite_partitions, which may be repeated"
)
_LINE = re.compile(rf'File "{re.escape(python_child.CODE_FILE_NAME)}", line (\d+)')
_PROCESS_GONE = "in a Spark task: its Python process ended without a word; it may have taken more memory than there is"
_MEMORY_ERRORS = ("OutOfMemoryError", "Java heap space", "SparkOutOfMemoryError", "MemoryError")
# Errors of the connection rather than of Spark, or of a Spark that is about to end.
_CONNECTION_ERRORS = (
    "of RPC that terminated with",
    "stopped SparkContext",
    "SparkContext was shut down",
)
# Prefix of errors that our own `raise_error` raises for a value of an input.
UNFIT_PREFIX = "noetl: "
_UNFIT_ERROR = re.compile(
    rf"^(?:in a Spark task: )?\[USER_RAISED_EXCEPTION\] {UNFIT_PREFIX}(.*?) SQLSTATE: P0001",
    re.DOTALL,
)
_OWN_CODE = re.compile(r'\n+== DataFrame ==\n"[^"\n]*" was called from\n[^\n]*/noetl/spark/[^\n]*')
MALFORMED_RECORD = "MALFORMED_RECORD_IN_PARSING"
_OTHER_HEADER = "CSV header does not conform to the schema"
_FILE_READ = re.compile(r"Encountered error while reading file (\S+?)\.?\s")
_TOLERANCE = (
    "correct the file, or allow it: "
    "`options: {mode: PERMISSIVE}` reads nulls, `mode: DROPMALFORMED` leaves such records out"
)
_SESSION_UNKNOWN = "SESSION_NOT_FOUND"
_SESSION_CLOSED = (
    "SESSION_CLOSED",
    "SESSION_CHANGED",
    "ID_ALREADY_CLOSED",
    "OPERATION_CANCELED",
    "OPERATION_ABANDONED",
    _SESSION_UNKNOWN,
)


def make_spark_failure(error: BaseException) -> Failure:
    """The failure for an error."""
    if isinstance(error, LocatedError):
        found = make_spark_failure(error.error)
        return replace(found, message=f"{error.where}: {found.message}")
    if isinstance(
        error, CheckFailed | ImpossibleRequest | OutputUncertain | ResultNotJson | ValueTooLarge
    ):
        return _make_own_failure(error)
    if isinstance(error, grpc.RpcError) and any(
        word in _read_details(error) for word in _SESSION_CLOSED
    ):
        return _make_interrupted_failure(_read_details(error))
    if _is_connection_lost(error):
        message = "the connection to the Spark server was lost"
        return Failure(
            code=LOST,
            kind="connection",
            message=message,
            retryable=True,
        )
    if isinstance(error, PythonException):
        return _make_task_failure(str(error))
    if isinstance(error, PySparkException):
        return _add_line_number(_make_reported_failure(error), python_child.find_line(error))
    return _make_code_failure(error)


def _make_own_failure(
    error: CheckFailed | ImpossibleRequest | OutputUncertain | ResultNotJson | ValueTooLarge,
) -> Failure:
    """The failure for an exception of `errors.py`."""
    if isinstance(error, CheckFailed):
        return Failure(code="EXPECTATION_FAILED", kind="data", message=str(error))
    if isinstance(error, ImpossibleRequest):
        return Failure(code="SPARK_CONFIG", kind="config", message=str(error))
    if isinstance(error, OutputUncertain):
        return Failure(code="SPARK_OUTPUT", kind="data", message=f"{error}; {_UNCERTAIN_REMEDY}")
    if isinstance(error, ResultNotJson):
        message = f"the result is not JSON: {error}"
        return Failure(code="RESULT_NOT_JSON", kind="python", message=message)
    return Failure(code="RESULT_TOO_LARGE", kind="python", message=str(error))


def _make_code_failure(error: BaseException) -> Failure:
    """The failure for an exception of the step's code in this process."""
    facts = python_child.make_python_failure(type(error).__name__, str(error), error)
    message = f"{facts['error']}: {facts['message']}"
    if facts["line"]:
        message += f" (line {facts['line']})"
    detail = {
        "exception": facts["error"],
        "line": facts["line"],
        "trace": facts["trace"],
    }
    return Failure(
        code="PYTHON_ERROR",
        kind="python",
        message=message,
        detail=detail,
    )


def find_sample(error: BaseException) -> list[dict[str, Any]] | None:
    """A few rows that failed a check, if the error has them."""
    if isinstance(error, LocatedError):
        return find_sample(error.error)
    return error.sample if isinstance(error, CheckFailed) else None


def is_unknown_session(error: grpc.RpcError) -> bool:
    """Whether the server does not know the session."""
    return _SESSION_UNKNOWN in _read_details(error)


def _read_details(error: grpc.RpcError) -> str:
    return str(error.details()) if isinstance(error, grpc.Call) else ""


def _make_interrupted_failure(text: str) -> Failure:
    return Failure(
        code=INTERRUPTED,
        kind="cancelled",
        message=_cut_first_line(text),
        retryable=True,
    )


def _is_connection_lost(error: BaseException) -> bool:
    """Whether the connection or the server is gone."""
    if isinstance(error, grpc.RpcError):
        return True
    return isinstance(error, PySparkException) and any(
        word in str(error) for word in _CONNECTION_ERRORS
    )


def _make_task_failure(text: str) -> Failure:
    """The failure for an exception in a Python worker of Spark; `text` holds its traceback."""
    traceback = text.partition("SQLSTATE:")[0].strip()
    lines = [line for line in traceback.splitlines() if line.strip()]
    last = lines[-1].strip() if lines else "no traceback"
    detail = {"trace": _cut_trace(text)}
    if any(word in last for word in _MEMORY_ERRORS):
        message = f"a Python task: {last}"
        return Failure(
            code=OUT_OF_MEMORY,
            kind="resource",
            message=message,
            detail=detail,
        )
    message = f"in a Spark task: {last}"
    found = Failure(
        code="PYTHON_ERROR",
        kind="python",
        message=message,
        detail=detail,
    )
    line_numbers = _LINE.findall(text)
    if not line_numbers:
        return found
    return _add_line_number(found, int(line_numbers[-1]))


def _add_line_number(found: Failure, line: int | None) -> Failure:
    """Add the line of the step's code to the message, if it is known."""
    if line is None:
        return found
    return replace(found, message=f"{found.message} (line {line})")


def _make_reported_failure(error: PySparkException) -> Failure:
    """The failure for an error that Spark reports."""
    whole = str(error)
    text = _strip_noise(whole)
    if any(word in text for word in _MEMORY_ERRORS):
        message = f"out of memory in a Spark task: {_cut_first_line(text)}"
        return Failure(code=OUT_OF_MEMORY, kind="resource", message=message)
    if any(word in text for word in _SESSION_CLOSED):
        return _make_interrupted_failure(text)
    if "An exception was thrown from the Python worker" in text:
        return _make_task_failure(text)
    if "Python worker exited unexpectedly" in text:
        return Failure(code="TOOL_CRASHED", kind="crash", message=_PROCESS_GONE)
    if MALFORMED_RECORD in whole or _OTHER_HEADER in whole:
        return Failure(code="SPARK_INPUT", kind="data", message=_explain_broken_record(whole))
    if unfit := _UNFIT_ERROR.match(text):
        return Failure(
            code="SPARK_INPUT",
            kind="data",
            message=_cut_message(unfit[1]),
        )
    message = _cut_message(_JAVA_CLASS.sub("", text) or text)
    if _NO_FILE_SYSTEM in text:
        message += _NO_DRIVER
    state = error.getSqlState()
    kind = _find_failure_kind(error.getCondition() or "", state)
    return Failure(
        code="SPARK_ERROR",
        kind=kind,
        message=message,
        sqlstate=state,
    )


def _strip_noise(text: str) -> str:
    """The text of an error without stack traces, query plans and lines of our own code."""
    text = _TRACE.sub("", text)
    text = _PLAN.sub(r"\1", text)
    text = _ABORTED.sub("in a Spark task: ", text)
    return _OWN_CODE.sub("", text).strip()


def _explain_broken_record(text: str) -> str:
    """The message for a file with a broken record.

    It does not repeat values, because messages are recorded in the log.
    """
    found = _FILE_READ.search(text)
    file = found[1] if found else "a file"
    if _OTHER_HEADER in text:
        return (
            f"{file} has another header than the other files, and Spark reads CSV by position; correct the file, give the "
            "files as two inputs, or write `options: {enforceSchema: true}` to read them all by position"
        )
    if "MALFORMED_CSV_RECORD" in text:
        why = "a row has more or fewer fields than the first one (`multiLine: true` if a quoted value has line breaks)"
    else:
        why = "it does not have the format of the input (`multiLine: true` if a JSON value spans lines)"
    return f"{file} has a record that cannot be read: {why}; {_TOLERANCE}"


def _cut_first_line(text: str) -> str:
    return _cut_message(text.splitlines()[0], MAX_LINE_CHARS)


def _cut_message(text: str, limit: int = MAX_TEXT_CHARS) -> str:
    """The beginning of a text. The mark of the cut says where the worker looks for parts of secrets."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}…"


def _cut_trace(text: str) -> str:
    """The end of a traceback."""
    if len(text) <= MAX_TRACE_CHARS:
        return text
    return f"…{text[-MAX_TRACE_CHARS:]}"


def _find_failure_kind(condition: str, state: str | None) -> str:
    if condition.startswith(("PATH_NOT_FOUND", "TABLE_OR_VIEW_NOT_FOUND")):
        return "not_found"
    state_class = (state or "")[:2]
    return {
        "42": "syntax",
        "22": "data",
        "46": "config",
    }.get(state_class, "sql")

"""What Spark and user code raise, as failures that name the cause in a line: stack traces of a JVM help nobody."""

import re
from typing import Any

import grpc  # type: ignore[import-untyped]  # it has no types
from pyspark.errors import PySparkException
from pyspark.errors.exceptions.base import PythonException

from noetl.spark.errors import Broken, NotJson, Uncertain, Unmet, ValueTooLarge, Wrong
from noetl.tools import python_child

LOST = "SPARK_LOST"
INTERRUPTED = "SPARK_INTERRUPTED"
OUT_OF_MEMORY = "SPARK_OUT_OF_MEMORY"
_TRACE = re.compile(
    r"\n+JVM stacktrace:.*|\n+\s+at [\w.$]+[(/].*|\n+Driver stacktrace:.*", re.DOTALL
)
_PLAN = re.compile(
    r"(SQLSTATE: \w+(?:; line \d+ pos \d+)?);\n.*", re.DOTALL
)  # what Spark made of a statement
_ABORTED = re.compile(
    r"^Job aborted due to stage failure: .*most recent failure: .*? (?:\([^()]*\)): ", re.DOTALL
)
_CLASS = re.compile(
    r"\(?\b(?:[a-z][\w$]*\.){2,}[A-Z][\w$]*(?:Exception|Error)\)?:? ?"
)  # of Java, before what it says
_NO_FILES = "No FileSystem for scheme"
_NO_DRIVER = "; this Spark cannot reach such a store: give a result, which goes to ours by itself, or use a profile that can"
_UNCERTAIN = (
    "some of the rows may be there, and a second copy would double them: look at the path, then start the step anew "
    "or use mode: overwrite_partitions, which may be repeated"
)
_LINE = re.compile(rf'File "{re.escape(python_child.FILE)}", line (\d+)')
_GONE = "in a Spark task: its Python process ended without a word; it may have taken more memory than there is"
_MEMORY = ("OutOfMemoryError", "Java heap space", "SparkOutOfMemoryError", "MemoryError")
# what is told of a call itself, and not by Spark as an error of its own, is the connection's; or Spark is about to end
_ENDING = ("of RPC that terminated with", "stopped SparkContext", "SparkContext was shut down")
UNFIT = "noetl: "  # before what a value of an input is raised for
_UNFIT = re.compile(
    rf"^(?:in a Spark task: )?\[USER_RAISED_EXCEPTION\] {UNFIT}(.*?) SQLSTATE: P0001", re.DOTALL
)
_OURS = re.compile(r'\n+== DataFrame ==\n"[^"\n]*" was called from\n[^\n]*/noetl/spark/[^\n]*')
MALFORMED = "MALFORMED_RECORD_IN_PARSING"
_OTHER_HEADER = "CSV header does not conform to the schema"
_FILE_READ = re.compile(r"Encountered error while reading file (\S+?)\.?\s")
_TOLERANCE = (
    "correct the file, or allow it: "
    "`options: {mode: PERMISSIVE}` reads nulls, `mode: DROPMALFORMED` leaves such records out"
)
_UNKNOWN = "SESSION_NOT_FOUND"
_CLOSED = (
    "SESSION_CLOSED",
    "SESSION_CHANGED",
    "ID_ALREADY_CLOSED",
    "OPERATION_CANCELED",
    "OPERATION_ABANDONED",
    _UNKNOWN,
)


def failure(error: BaseException) -> dict[str, Any]:
    """The fields of a Failure."""
    if isinstance(error, Unmet):
        return {"code": "EXPECTATION_FAILED", "kind": "data", "message": str(error)}
    if isinstance(error, Wrong):
        return {"code": "SPARK_CONFIG", "kind": "config", "message": str(error)}
    if isinstance(error, Uncertain):
        return {"code": "SPARK_OUTPUT", "kind": "data", "message": f"{error}; {_UNCERTAIN}"}
    if isinstance(error, NotJson):
        return {
            "code": "RESULT_NOT_JSON",
            "kind": "python",
            "message": f"the result is not JSON: {error}",
        }
    if isinstance(error, ValueTooLarge):
        return {"code": "RESULT_TOO_LARGE", "kind": "python", "message": str(error)}
    if isinstance(error, Broken):
        found = failure(error.error)
        return {**found, "message": f"{error.where}: {found['message']}"}
    if isinstance(error, grpc.RpcError) and any(word in _details(error) for word in _CLOSED):
        return _interrupted(_details(error))
    if _is_lost(error):
        message = "the connection to the Spark server was lost"
        return {"code": LOST, "kind": "connection", "message": message, "retryable": True}
    if isinstance(error, PythonException):
        return _in_task(str(error))
    if isinstance(error, PySparkException):
        return _placed(_of_spark(error), python_child.line_of(error))
    told = python_child.failure(type(error).__name__, str(error), error)
    where = f" (line {told['line']})" if told["line"] else ""
    detail = {"exception": told["error"], "line": told["line"], "trace": told["trace"]}
    message = f"{told['error']}: {told['message']}{where}"
    return {"code": "PYTHON_ERROR", "kind": "python", "message": message, "detail": detail}


def sample_of(error: BaseException) -> list[dict[str, Any]] | None:
    """A few rows that show what is wrong."""
    if isinstance(error, Broken):
        return sample_of(error.error)
    return error.sample if isinstance(error, Unmet) else None


def is_unknown(error: grpc.RpcError) -> bool:
    """There is no such session."""
    return _UNKNOWN in _details(error)


def _details(error: grpc.RpcError) -> str:
    return str(error.details()) if isinstance(error, grpc.Call) else ""


def _interrupted(said: str) -> dict[str, Any]:
    return {"code": INTERRUPTED, "kind": "cancelled", "message": _first(said), "retryable": True}


def _is_lost(error: BaseException) -> bool:
    if isinstance(error, grpc.RpcError):
        return True
    return isinstance(error, PySparkException) and any(word in str(error) for word in _ENDING)


def _in_task(text: str) -> dict[str, Any]:
    """The last line of the traceback that came back from a Python worker."""
    lines = [line for line in text.partition("SQLSTATE:")[0].strip().splitlines() if line.strip()]
    last = lines[-1].strip() if lines else "no traceback"
    detail = {"trace": text[-1500:]}
    places = _LINE.findall(text)
    if any(word in last for word in _MEMORY):
        return {
            "code": OUT_OF_MEMORY,
            "kind": "resource",
            "message": f"a Python task: {last}",
            "detail": detail,
        }
    found = {
        "code": "PYTHON_ERROR",
        "kind": "python",
        "message": f"in a Spark task: {last}",
        "detail": detail,
    }
    return _placed(found, int(places[-1]) if places else None)


def _placed(found: dict[str, Any], line: int | None) -> dict[str, Any]:
    """With the line of the step's code."""
    return found if line is None else {**found, "message": f"{found['message']} (line {line})"}


def _of_spark(error: PySparkException) -> dict[str, Any]:
    said = _ABORTED.sub("in a Spark task: ", _PLAN.sub(r"\1", _TRACE.sub("", str(error))))
    said = _OURS.sub("", said).strip()
    state, condition = error.getSqlState(), error.getCondition() or ""
    if any(word in said for word in _MEMORY):
        return {
            "code": OUT_OF_MEMORY,
            "kind": "resource",
            "message": f"out of memory in a Spark task: {_first(said)}",
        }
    if any(word in said for word in _CLOSED):
        return _interrupted(said)
    if "An exception was thrown from the Python worker" in said:
        return _in_task(said)
    if "Python worker exited unexpectedly" in said:
        return {"code": "TOOL_CRASHED", "kind": "crash", "message": _GONE}
    if MALFORMED in str(error) or _OTHER_HEADER in str(error):
        return {"code": "SPARK_INPUT", "kind": "data", "message": _malformed(str(error))}
    if unfit := _UNFIT.match(said):
        return {"code": "SPARK_INPUT", "kind": "data", "message": unfit[1][:900]}
    message = (_CLASS.sub("", said) or said)[:900] + (_NO_DRIVER if _NO_FILES in said else "")
    return {
        "code": "SPARK_ERROR",
        "kind": _kind(condition, state),
        "message": message,
        "sqlstate": state,
    }


def _malformed(text: str) -> str:
    """Of a file with a record that cannot be read. Its values are not repeated: the message is recorded."""
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


def _first(said: str) -> str:
    return said.splitlines()[0][:500]


def _kind(condition: str, state: str | None) -> str:
    if condition.startswith(("PATH_NOT_FOUND", "TABLE_OR_VIEW_NOT_FOUND")):
        return "not_found"
    return {"42": "syntax", "22": "data", "46": "config"}.get((state or "")[:2], "sql")

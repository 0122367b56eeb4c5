"""The messages of the worker and the children of the python tool, on the worker's side.

`child.py` has the same messages as typed dicts, because a child loads nothing but the standard library and
orjson.
"""

from typing import Any

from msgspec import Struct

from noetl.results.formats.shared_records import RecordsLayout
from noetl.tools.processes.messages import ProcessLimits


class AttachedRecords(Struct, frozen=True):
    """Records in shared memory, and their place in the input. Its descriptor goes beside the message."""

    path: list[str]
    layout: RecordsLayout


class PythonRequest(Struct, frozen=True):
    """Runs code on several inputs. The pool adds the `inputs`, which are encoded already.

    `attached` belongs to the only input. With `columns`, an answer may be in shared memory.
    """

    code: str
    env: dict[str, str] | None
    limit: int  # bytes of a value
    stop: bool  # the first input that fails ends the request
    columns: bool
    attached: list[AttachedRecords]
    limits: ProcessLimits | None  # None: those of the process


class PythonAnswer(Struct, frozen=True):
    """The value of a call. If `error` is set, the call failed: the name of the exception.

    With a `layout`, the value has records in shared memory: they are the value, or its member `at`.
    """

    value: Any = None
    at: str | None = None
    layout: RecordsLayout | None = None
    error: str | None = None
    message: str = ""
    line: int | None = None
    trace: str = ""


class PythonAnswers(Struct, frozen=True):
    """Answers in the order of the inputs, and the microseconds that these calls ran."""

    answers: list[PythonAnswer]
    micros: int


class BatchEnd(PythonAnswers, frozen=True):
    """The end of a request, with its last answers.

    `spoiled` says why the process cannot be used again, `stopped` that a failure ended the request.
    """

    spoiled: str | None
    stopped: bool

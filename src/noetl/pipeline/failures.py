"""How a failure travels inside the pipeline, and how it is made fit for an event."""

from typing import Any

from msgspec.structs import replace

from noetl.model.codec import encode
from noetl.model.errors import Failure
from noetl.pipeline.redaction import stripped
from noetl.playbook.expressions import TemplateError

LONGEST_MESSAGE = 1_000
LARGEST_DETAIL = 2_000


class Failing(Exception):
    """The task fails with `failure`. A `final` one passes by the policy: running the tool again would not mend it."""

    def __init__(self, failure: Failure, *, final: bool = False) -> None:
        super().__init__(failure.message)
        self.failure = failure
        self.final = final


def template_failure(error: TemplateError, where: str) -> Failure:
    detail: dict[str, Any] = {"line": error.line, "column": error.column, "template": (error.template or "")[:200]}
    return Failure(code=error.code, kind="template", message=f"{where}{error.path}: {error}", detail=detail)


def bounded(failure: Failure, **facts: Any) -> Failure:
    """Small enough for an event, and without keys of secrets, whatever a tool put into it."""
    message = failure.message
    if len(message) > LONGEST_MESSAGE:
        message = message[: LONGEST_MESSAGE - 1] + "…"
    try:
        small = len(encode(failure.detail)) <= LARGEST_DETAIL
        detail = stripped(failure.detail) if small else {"cut": "the detail was too large"}
    except (TypeError, ValueError):
        detail = {"cut": "the detail was not JSON"}
    return replace(failure, message=message, detail=detail, **facts)

"""How a failure travels inside the pipeline, and how it is made fit for an event."""

from typing import Any

from msgspec.structs import replace

from noetl.model.codec import encode
from noetl.model.errors import Failure
from noetl.model.secrets import stripped
from noetl.playbook.expressions import TemplateError

LONGEST_MESSAGE = 1_000
LARGEST_DETAIL = 2_000
ENDS_MATTER = ("trace", "stderr", "stdout")  # what was printed last says most


class Failing(Exception):
    """The task fails with `failure`. A `final` one passes by the policy: running the tool again would not mend it."""

    def __init__(self, failure: Failure, *, final: bool = False) -> None:
        super().__init__(failure.message)
        self.failure = failure
        self.final = final


def template_failure(error: TemplateError, where: str) -> Failure:
    detail: dict[str, Any] = {
        "line": error.line,
        "column": error.column,
        "template": (error.template or "")[:200],
    }
    return Failure(
        code=error.code, kind="template", message=f"{where}{error.path}: {error}", detail=detail
    )


def bounded(failure: Failure, **facts: Any) -> Failure:
    """Small enough for an event, and without keys of secrets, whatever a tool put into it."""
    message = failure.message
    if len(message) > LONGEST_MESSAGE:
        message = message[: LONGEST_MESSAGE - 1] + "…"
    try:
        detail = _shortened(stripped(failure.detail))
    except (TypeError, ValueError):
        detail = {"cut": "the detail was not JSON"}
    return replace(failure, message=message, detail=detail, **facts)


def _shortened(detail: dict[str, Any]) -> dict[str, Any]:
    """Its values as long as they fit together: of what a program printed the end, of anything else the beginning."""
    longest = LARGEST_DETAIL
    shortened = detail
    while len(encode(shortened)) > LARGEST_DETAIL:
        longest //= 2
        if not longest:
            return {"cut": "the detail was too large"}
        shortened = {name: _cut(name, value, longest) for name, value in detail.items()}
    return shortened


def _cut(name: str, value: Any, longest: int) -> Any:
    text = value if isinstance(value, str) else encode(value).decode()
    if len(text) <= longest:
        return value
    return "…" + text[-longest:] if name in ENDS_MATTER else text[:longest] + "…"

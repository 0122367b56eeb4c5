"""How a failure travels inside the pipeline, and how it is made small enough for an event."""

from typing import Any

from msgspec.structs import replace

from noetl.model.codec import encode
from noetl.model.errors import Failure
from noetl.model.secrets import stripped
from noetl.playbook.expressions import TemplateError

LONGEST_MESSAGE = 1_000  # characters
LARGEST_DETAIL = 2_000  # bytes
ENDS_MATTER = ("trace", "stderr", "stdout")  # their end says more than their beginning


class Failing(Exception):
    """The task fails with `failure`.

    A `final` failure ignores the policy, because running the tool again would not help.
    """

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
        code=error.code,
        kind="template",
        message=f"{where}{error.path}: {error}",
        detail=detail,
    )


def bounded(failure: Failure, **facts: Any) -> Failure:
    """The failure, small enough for an event and without keys of secrets.

    A tool may put anything into it.
    """
    message = failure.message
    if len(message) > LONGEST_MESSAGE:
        message = message[: LONGEST_MESSAGE - 1] + "…"
    try:
        detail = _shortened(stripped(failure.detail))
    except (TypeError, ValueError):
        detail = {"cut": "the detail was not JSON"}
    return replace(
        failure,
        message=message,
        detail=detail,
        **facts,
    )


def _shortened(detail: dict[str, Any]) -> dict[str, Any]:
    """The detail with its values cut so that they fit together."""
    longest = LARGEST_DETAIL
    shortened = detail
    while len(encode(shortened)) > LARGEST_DETAIL:
        longest //= 2
        if not longest:
            return {"cut": "the detail was too large"}
        shortened = {name: _cut(name, value, longest) for name, value in detail.items()}
    return shortened


def _cut(name: str, value: Any, longest: int) -> Any:
    text = value
    if not isinstance(value, str):
        text = encode(value).decode()
    if len(text) <= longest:
        return value
    if name in ENDS_MATTER:
        return "…" + text[-longest:]
    return text[:longest] + "…"

"""How a failure travels inside the pipeline, and how it is made small enough for an event."""

from typing import Any

from msgspec.structs import replace

from noetl.model.codec import encode
from noetl.model.errors import Failure
from noetl.model.secrets import strip_secrets
from noetl.model.stored_text import replace_nul
from noetl.template.errors import TemplateError

MAX_MESSAGE_CHARS = 1_000  # characters
MAX_DETAIL_BYTES = 2_000  # bytes
KEEP_END_OF = ("trace", "stderr", "stdout")  # their end says more than their beginning


class TaskFailed(Exception):
    """The task fails with `failure`.

    A `final` failure ignores the policy, because running the tool again would not help.
    """

    def __init__(self, failure: Failure, *, final: bool = False) -> None:
        super().__init__(failure.message)
        self.failure = failure
        self.final = final


def failure_from_template_error(error: TemplateError, where: str) -> Failure:
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


def limit_failure(failure: Failure, **facts: Any) -> Failure:
    """The failure, small enough for an event, without keys of secrets, with a message that can be stored.

    A tool may put anything into it.
    """
    message = replace_nul(failure.message)
    if len(message) > MAX_MESSAGE_CHARS:
        message = message[: MAX_MESSAGE_CHARS - 1] + "…"
    try:
        detail = _shorten_detail(strip_secrets(failure.detail))
    except (TypeError, ValueError):
        detail = {"cut": "the detail was not JSON"}
    return replace(
        failure,
        message=message,
        detail=detail,
        **facts,
    )


def _shorten_detail(detail: dict[str, Any]) -> dict[str, Any]:
    """The detail with its values cut so that they fit together."""
    longest = MAX_DETAIL_BYTES
    shortened = detail
    while len(encode(shortened)) > MAX_DETAIL_BYTES:
        longest //= 2
        if not longest:
            return {"cut": "the detail was too large"}
        shortened = {name: _cut_value(name, value, longest) for name, value in detail.items()}
    return shortened


def _cut_value(name: str, value: Any, longest: int) -> Any:
    text = value
    if not isinstance(value, str):
        text = encode(value).decode()
    if len(text) <= longest:
        return value
    if name in KEEP_END_OF:
        return "…" + text[-longest:]
    return text[:longest] + "…"

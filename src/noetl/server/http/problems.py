"""Errors as `application/problem+json`: one table maps exceptions to answers.

No answer contains a stack trace.
"""

from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import Response

from noetl.model.errors import (
    Conflict,
    CorruptLog,
    Expired,
    Fenced,
    InvalidInput,
    NoetlError,
    NotAuthenticated,
    NotFound,
    NotPermitted,
    Stale,
    TooManyRequests,
    Unavailable,
)
from noetl.playbook.validation import PlaybookInvalid
from noetl.server.dispatch.states import Unfoldable
from noetl.server.hooks.service import NotSigned
from noetl.server.http.hint_routes import find_routes
from noetl.server.http.validation import InvalidRequest
from noetl.template.errors import TemplateError

MEDIA_TYPE = "application/problem+json"
MAX_LISTED_FINDINGS = 20
MAX_PLACE_CHARS = 200

# The first entry that matches counts.
STATUSES: tuple[tuple[type[NoetlError], int], ...] = (
    (Expired, 410),
    (NotFound, 404),
    (NotSigned, 401),
    (NotAuthenticated, 401),
    (NotPermitted, 403),
    (TooManyRequests, 429),
    (Conflict, 409),
    (InvalidInput, 422),
    (TemplateError, 422),
    (Unavailable, 503),
    (Fenced, 503),
    (Stale, 409),
    (Unfoldable, 409),
    (CorruptLog, 500),
)
TITLES = {
    400: "Bad request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not found",
    405: "Method not allowed",
    409: "Conflict",
    410: "Gone",
    413: "Too large",
    415: "Unsupported media type",
    421: "Misdirected request",
    422: "Cannot be processed",
    429: "Too many requests",
    500: "Internal error",
    503: "Unavailable",
}
ANSWER_HEADERS = {
    401: {"WWW-Authenticate": "Bearer"},
    503: {"Retry-After": "1"},
}
NOT_READ_CODE = "model_attributes_type"  # of a body that was not read as JSON
CODES = {
    404: "NOT_FOUND",
    405: "METHOD_NOT_ALLOWED",
    413: "TOO_LARGE",
    415: "UNSUPPORTED_MEDIA_TYPE",
}


class Problem(msgspec.Struct, frozen=True):
    """A problem as in RFC 9457. `code` is stable, `hint` says what to do, and `routes` are the
    routes for the commands that the hint names."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    hint: str | None = None
    routes: list[str] = []
    findings: list[dict[str, Any]] | None = None


def make_problem(
    status: int, code: str, detail: str, hint: str | None = None, **more: Any
) -> Response:
    """An answer in the problem format."""
    body = {
        "type": f"urn:noetl:problem:{code.lower().replace('_', '-')}",
        "title": TITLES.get(status, "Error"),
        "status": status,
        "code": code,
        "detail": detail,
        "hint": hint,
        "routes": find_routes(hint),
        **more,
    }
    headers = ANSWER_HEADERS.get(status)
    return Response(msgspec.json.encode(body), status, headers, MEDIA_TYPE)


def make_error_problem(error: NoetlError) -> Response:
    """The answer to an error of ours."""
    status = next((status for kind, status in STATUSES if isinstance(error, kind)), 500)
    if status == 500:
        return make_internal_problem()
    if isinstance(error, PlaybookInvalid):
        errors = sum(finding.severity == "error" for finding in error.findings)
        findings = [finding.to_dict() for finding in error.findings]
        return make_problem(
            status, error.code, f"the playbook has {errors} error(s)", error.hint, findings=findings
        )
    answer = make_problem(status, error.code, str(error), error.hint)
    if isinstance(error, TooManyRequests):
        answer.headers["Retry-After"] = str(error.retry_after_s)
    return answer


def make_internal_problem() -> Response:
    return make_problem(
        500,
        "INTERNAL",
        "something went wrong in the server",
        "its log says what; the request may be repeated",
    )


def make_validation_problem(error: InvalidRequest) -> Response:
    """The answer to an invalid request. It never contains the value, which may be a secret."""
    findings = [
        {
            "at": ".".join(map(str, found.place))[:MAX_PLACE_CHARS],
            "code": found.code,
            "message": found.message,
        }
        for found in error.findings[:MAX_LISTED_FINDINGS]
    ]
    if any(found["at"] == "path.execution_id" for found in findings):
        return make_error_problem(
            NotFound("no execution has such an id", hint="noetl exec list shows those there are")
        )
    detail = "the request does not fit"
    if findings:
        detail = f"{findings[0]['at']}: {findings[0]['message']}"
    hint = "GET /api/openapi.json says what is expected"
    if any(found["at"] == "body" and found["code"] == NOT_READ_CODE for found in findings):
        hint = f"{hint}; a body is read as JSON when its Content-Type is application/json"
    if any(found["code"] == "json_invalid" for found in findings):
        return make_problem(400, "BAD_JSON", detail, hint, findings=findings)
    return make_problem(422, "INVALID_REQUEST", detail, hint, findings=findings)


def make_http_problem(error: HTTPException) -> Response:
    code = CODES.get(error.status_code, "BAD_REQUEST")
    response = make_problem(error.status_code, code, str(error.detail))
    response.headers.update(error.headers or {})
    return response

"""Strict JSON bodies and query parameters, and the parameters that several routes share.

Depth and size of a body are checked before it is parsed. Unknown keys are refused.
"""

import re
from collections.abc import Callable, Coroutine
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Header, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, model_validator
from starlette.datastructures import QueryParams
from starlette.responses import Response

from noetl.model.duplicate_keys import find_duplicate_key

MAX_JSON_DEPTH = 64
MAX_NUMBER_DIGITS = 400  # digits
MAX_LISTED_UNKNOWN_KEYS = 20  # unknown keys that are reported one by one
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_ONE_KIND = bytes.maketrans(b"{}", b"[]")
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
_NUMBER = re.compile(rb"[0-9]{%d}" % MAX_NUMBER_DIGITS)
_LONG_DIGITS = re.compile(rb"[0-9]{19}")
_INTEGER = re.compile(rb"(?<![0-9.eE+-])-?[0-9]{19,}(?![0-9.eE])")
MIN_EXACT_INTEGER = -(2**63)  # the range of integers that the parser keeps exact
MAX_EXACT_INTEGER = 2**64 - 1


class RequestBody(BaseModel):
    """The base of all models that a client sends."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def refuse_many_unknown_keys(cls, given: Any) -> Any:
        """Report many unknown keys as one error: one per key would make the answer very large."""
        if isinstance(given, dict) and len(given) > MAX_LISTED_UNKNOWN_KEYS + len(cls.model_fields):
            known = {field.alias or name for name, field in cls.model_fields.items()}
            unknown = [key for key in given if key not in known]
            if len(unknown) > MAX_LISTED_UNKNOWN_KEYS:
                raise ValueError(
                    f"{len(unknown)} unknown keys, {str(unknown[0])[:60]!r} among them"
                )
        return given


class View(BaseModel):
    """The base of all models that a client gets."""

    model_config = ConfigDict(frozen=True)


class DeletedView(View):
    name: str


def measure_depth(data: bytes) -> int:
    """The nesting depth of brackets outside strings; counts up to one more than is allowed.

    The parser reports brackets that do not match.
    """
    if data.count(b"[") + data.count(b"{") <= MAX_JSON_DEPTH:
        return 0
    brackets = _STRING.sub(b"", data).translate(_ONE_KIND, _NOT_BRACKETS)
    for level in range(1, MAX_JSON_DEPTH + 1):
        outer = brackets.replace(b"[]", b"")
        if not outer:
            return level
        if len(outer) == len(brackets):  # brackets that do not match
            return MAX_JSON_DEPTH + 1 if brackets.count(b"[") > MAX_JSON_DEPTH else level
        brackets = outer
    return MAX_JSON_DEPTH + 1


def has_nul(data: bytes) -> bool:
    """Whether a text in the JSON contains the character NUL, which no database takes."""
    return b"\\u0000" in data and _NUL.search(data) is not None


def decode_strict_json(data: bytes) -> Any:
    """Parse strict JSON: UTF-8, no NaN, no duplicate keys, no integers of more than 64 bits.

    The parser would turn such an integer into a float of another value.
    """
    if measure_depth(data) > MAX_JSON_DEPTH:
        raise _make_json_error(f"nested more than {MAX_JSON_DEPTH} deep")
    if has_nul(data):
        raise _make_json_error("a NUL character in a text: a database refuses it")
    if _NUMBER.search(data):
        raise _make_json_error(f"a number of more than {MAX_NUMBER_DIGITS} digits")
    integer = _find_large_integer(data)
    if integer is not None:
        raise _make_json_error(f"{integer[:40]} does not fit into 64 bits; send it as text")
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise _make_json_error(
            f"not JSON: {error.msg} (line {error.lineno}, column {error.colno})"
        ) from error
    if _has_duplicate_key(data, value):
        raise _make_json_error(
            f"the key {str(find_duplicate_key(data))[:60]!r} stands twice in one object; keep one of them"
        )
    return value


def _has_duplicate_key(data: bytes, value: Any) -> bool:
    """Whether the text has more keys (colons outside strings) than the parsed value."""
    pairs = _count_keys(value)
    if data.count(b":") == pairs:
        return False
    return _STRING.sub(b"", data).count(b":") != pairs


def _count_keys(value: Any) -> int:
    """The number of keys of all objects in the value."""
    count = 0
    pending = [value]
    while pending:
        part = pending.pop()
        if isinstance(part, dict):
            count += len(part)
            pending.extend(part.values())
        elif isinstance(part, list):
            pending.extend(part)
    return count


def _find_large_integer(data: bytes) -> str | None:
    """The first integer outside strings that does not fit into 64 bits, if there is one."""
    if _LONG_DIGITS.search(data) is None:
        return None
    without_strings = _STRING.sub(b"", data)
    for digits in _INTEGER.findall(without_strings):
        if not MIN_EXACT_INTEGER <= int(digits) <= MAX_EXACT_INTEGER:
            return str(digits, "ascii")
    return None


def _make_json_error(why: str) -> RequestValidationError:
    return RequestValidationError([{"type": "json_invalid", "loc": ("body",), "msg": why}])


class StrictRequest(Request):
    """A request that decodes its body as strict JSON."""

    async def json(self) -> Any:
        if not hasattr(self, "_json"):
            self._json = decode_strict_json(await self.body())
        return self._json


class OpenRoute(APIRoute):
    """A route for unknown callers, such as a hook. It ignores unknown query parameters."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        answer = super().get_route_handler()

        async def with_strict_json(request: Request) -> Response:
            return await answer(StrictRequest(request.scope, request.receive))

        return with_strict_json


class StrictRoute(OpenRoute):
    """Refuses unknown query parameters: `?offset=20` would silently give the first page."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        answer = super().get_route_handler()
        known = frozenset(field.alias for field in self.dependant.query_params)

        async def with_known_parameters(request: Request) -> Response:
            if request.scope["query_string"]:
                _check_parameters(request.query_params, known)
            return await answer(request)

        return with_known_parameters


def _check_parameters(parameters: QueryParams, known: frozenset[str]) -> None:
    """Refuse unknown and repeated query parameters."""
    for name in parameters:
        if name not in known:
            message = f"no such parameter here; known: {', '.join(sorted(known)) or 'none'}"
            raise RequestValidationError(
                [{"type": "unknown_parameter", "loc": ("query", name[:60]), "msg": message}]
            )
        if len(parameters.getlist(name)) > 1:
            message = "given more than once"
            raise RequestValidationError(
                [{"type": "repeated_parameter", "loc": ("query", name), "msg": message}]
            )


def make_router(tag: str, route_class: type[APIRoute] = StrictRoute) -> APIRouter:
    return APIRouter(route_class=route_class, tags=[tag], responses=PROBLEMS)


class Problem(View):
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


PROBLEMS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": Problem, "description": "The request cannot be honoured: nothing happened."},
    "5XX": {"model": Problem, "description": "503: try again, with the same Idempotency-Key."},
}

EXECUTION_ID = "[1-9][0-9]{0,18}"
Id = Annotated[
    str,
    Path(pattern=rf"^{EXECUTION_ID}$", description="execution id", examples=["724551830122291200"]),
]
Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        pattern=r"^[\x21-\x7e]{1,200}$",
        description="A repeat with the same key has no further effect and gives the same answer.",
    ),
]
AfterSeq = Annotated[int, Query(ge=0, le=1 << 62, description="beyond this sequence number")]
MinSeq = Annotated[
    int | None,
    Query(
        ge=0, le=1 << 62, description="Wait until everything up to this sequence number is visible."
    ),
]
Limit = Annotated[int, Query(ge=1, le=500, description="how many at most")]
OfStatus = Annotated[str | None, Query(max_length=20, description="of this status only")]
OfPath = Annotated[
    str | None,
    Query(max_length=200, description="of this playbook only; `*` stands for any letters: etl/*"),
]
OfParent = Annotated[
    str | None, Query(pattern=rf"^{EXECUTION_ID}$", description="started by this execution only")
]
Since = Annotated[
    str | None,
    Query(
        max_length=40,
        description="started since: how long ago (1d, 2h), or ISO 8601, UTC when it names no zone",
    ),
]

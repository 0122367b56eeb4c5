"""The parameters of routes: parts of the path, of the query and headers, with their constraints."""

import re
from collections.abc import Callable
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin

import msgspec

from noetl.server.http.validation import InvalidRequest, Place, RequestFinding

INTEGER = re.compile(r"[+-]?[0-9]+(_[0-9]+)*(\.0*)?", re.ASCII)
MAX_INTEGER_CHARS = 4300  # longer texts are slow to convert
TRUE_WORDS = frozenset({"1", "true", "t", "yes", "y", "on"})
FALSE_WORDS = frozenset({"0", "false", "f", "no", "n", "off"})
TextParser = Callable[[str, Place], Any]


class RequestParameter(msgspec.Struct, frozen=True):
    """Where a parameter stands, and what its values must be."""

    place: ClassVar[str]
    description: str | None = None
    alias: str | None = None
    examples: list[Any] | None = None
    pattern: str | None = None
    min_length: int | None = None
    max_length: int | None = None
    ge: int | None = None
    le: int | None = None

    def make_type(self, kind: Any) -> Any:
        """The type with the constraints. They hold for its values, and not for null."""
        members = [self._constrain(member) for member in list_members(kind)]
        about = msgspec.Meta(description=self.description, examples=self.examples)
        union: Any = Union[tuple(members)]  # as many as there are
        return Annotated[union, about]

    def _constrain(self, member: Any) -> Any:
        if member is NoneType:
            return member
        constraints = msgspec.Meta(
            pattern=self.pattern, min_length=self.min_length, max_length=self.max_length
        )
        if member is int:
            constraints = msgspec.Meta(ge=self.ge, le=self.le)
        return Annotated[member, constraints]


class PathParameter(RequestParameter, frozen=True):
    place = "path"


class QueryParameter(RequestParameter, frozen=True):
    place = "query"


class HeaderParameter(RequestParameter, frozen=True):
    place = "header"


def list_members(kind: Any) -> tuple[Any, ...]:
    """The types of a union; otherwise the type alone."""
    if get_origin(kind) in (Union, UnionType):
        return get_args(kind)
    return (kind,)


def parse_integer(text: str, place: Place) -> Any:
    written = text.strip()
    if len(written) > MAX_INTEGER_CHARS:
        message = "Unable to parse input string as an integer, exceeded maximum size"
        raise InvalidRequest(RequestFinding("int_parsing_size", place, message))
    if INTEGER.fullmatch(written) is None:
        message = "Input should be a valid integer, unable to parse string as an integer"
        raise InvalidRequest(RequestFinding("int_parsing", place, message))
    return int(written.partition(".")[0])


def parse_bool(text: str, place: Place) -> Any:
    word = text.lower()
    if word in TRUE_WORDS:
        return True
    if word in FALSE_WORDS:
        return False
    message = "Input should be a valid boolean, unable to interpret input"
    raise InvalidRequest(RequestFinding("bool_parsing", place, message))


def keep_text(text: str, place: Place) -> Any:
    return text


def choose_parser(kind: Any) -> TextParser:
    """The function that turns the text of a parameter into a value of this type."""
    members = set(list_members(kind)) - {NoneType}
    if members == {int}:
        return parse_integer
    if members == {bool}:
        return parse_bool
    is_text = all(member is str or get_origin(member) is Literal for member in members)
    if not is_text:
        raise TypeError(f"a parameter cannot have the type {kind}")
    return keep_text


# -- parameters that several routes share --

EXECUTION_ID = "[1-9][0-9]{0,18}"
EXECUTION_ID_PATTERN = rf"^{EXECUTION_ID}\Z"
Id = Annotated[
    str,
    PathParameter("execution id", pattern=EXECUTION_ID_PATTERN, examples=["724551830122291200"]),
]
Key = Annotated[
    str | None,
    HeaderParameter(
        "A repeat with the same key has no further effect and gives the same answer.",
        alias="Idempotency-Key",
        pattern=r"^[\x21-\x7e]{1,200}\Z",
    ),
]
AfterSeq = Annotated[int, QueryParameter("beyond this sequence number", ge=0, le=1 << 62)]
MinSeq = Annotated[
    int | None,
    QueryParameter(
        "Wait until everything up to this sequence number is visible.", ge=0, le=1 << 62
    ),
]
WaitForEnd = Annotated[
    int,
    QueryParameter("Wait up to so many seconds for the end of the execution.", ge=0, le=30),
]
Limit = Annotated[int, QueryParameter("how many at most", ge=1, le=500)]
OfStatus = Annotated[str | None, QueryParameter("of this status only", max_length=20)]
OfStatuses = Annotated[
    str | None,
    QueryParameter(
        "of this status only, or of several, separated by commas: failed,running", max_length=200
    ),
]
OfPath = Annotated[
    str | None,
    QueryParameter("of this playbook only; `*` stands for any letters: etl/*", max_length=200),
]
OfParent = Annotated[
    str | None, QueryParameter("started by this execution only", pattern=EXECUTION_ID_PATTERN)
]
Since = Annotated[
    str | None,
    QueryParameter(
        "started since: how long ago (1d, 2h), or ISO 8601, UTC when it names no zone",
        max_length=40,
    ),
]
Until = Annotated[
    str | None,
    QueryParameter("started before that: how long ago (1d, 2h), or ISO 8601", max_length=40),
]
OnlyRoots = Annotated[bool, QueryParameter("without those that another execution started")]
OnlyWaiting = Annotated[
    bool,
    QueryParameter(
        "only those that wait for a person: for an approval, for a signal, paused or quarantined"
    ),
]
SearchText = Annotated[
    str | None,
    QueryParameter(
        "digits: the beginning of an id; else the beginning of a path, or words of the error",
        max_length=200,
    ),
]

"""The structs that requests and answers have: their bases, and what OpenAPI says of their fields."""

from typing import Annotated, Any, TypeVar

from msgspec import UNSET, Meta, Struct
from msgspec.structs import astuple


def describe(description: str | None = None, *, example: Any = UNSET, **constraints: Any) -> Meta:
    """What OpenAPI says of a field: what it is, an example, and what its values must be."""
    examples = None if example is UNSET else [example]
    return Meta(description=description, examples=examples, **constraints)


ShortText = Annotated[str, Meta(max_length=100)]  # a name
LongText = Annotated[str, Meta(max_length=200)]  # a path
VersionNumber = Annotated[int, Meta(ge=1, le=1 << 31)]


class RequestBody(Struct, frozen=True, forbid_unknown_fields=True):
    """The base of all structs that a client sends."""


class View(Struct, frozen=True):
    """The base of all structs that a client gets."""


class DeletedView(View, frozen=True):
    name: str


WiderView = TypeVar("WiderView", bound=View)


def extend_view(kind: type[WiderView], view: View, **more: Any) -> WiderView:
    """The fields of a view and more, as a view of a kind that inherits from that of the view."""
    return kind(*astuple(view), **more)

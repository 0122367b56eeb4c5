"""The structs that answers about state between executions have."""

from typing import Annotated, Any

from msgspec import Meta

from noetl.log.port import StateRow
from noetl.model.clock import format_iso
from noetl.server.http.bodies import View


class StateView(View, frozen=True):
    path: Annotated[str, Meta(examples=["etl/orders"])]
    name: Annotated[str, Meta(examples=["watermark"])]
    version: Annotated[int, Meta(examples=[3], description="counts the writes of this name")]
    value: Annotated[Any, Meta(examples=[4711])]
    execution_id: Annotated[str | None, Meta(description="the execution that wrote it")]
    seq: Annotated[int | None, Meta(description="the number of its event")]
    by: Annotated[str | None, Meta(description="the person that wrote it")]
    at: str


class StatePageView(View, frozen=True):
    state: list[StateView]
    next: Annotated[str | None, Meta(description="`after` of the next page; null: there is none")]


class StateOfPathView(View, frozen=True):
    path: str
    state: list[StateView]


class StateVersionView(StateView, frozen=True):
    unset: Annotated[bool, Meta(description="this version took the value away")]


class StateHistoryView(View, frozen=True):
    versions: list[StateVersionView]


class StateUnsetView(View, frozen=True):
    path: str
    name: str
    version: int


def make_state_view(row: StateRow) -> StateView:
    return StateView(
        path=row.path,
        name=row.name,
        version=row.version,
        value=row.value,
        execution_id=row.execution_id,
        seq=row.seq,
        by=row.by,
        at=format_iso(row.at),
    )

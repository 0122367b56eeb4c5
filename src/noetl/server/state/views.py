"""The structs that answers about state between executions have."""

from typing import Annotated, Any

from noetl.log.playbook_state.port import StateRow
from noetl.model.clock import format_iso
from noetl.server.http.structs import View, describe


class StateView(View, frozen=True):
    path: Annotated[str, describe(example="etl/orders")]
    name: Annotated[str, describe(example="watermark")]
    version: Annotated[int, describe("counts the writes of this name", example=3)]
    value: Annotated[Any, describe(example=4711)]
    execution_id: Annotated[str | None, describe("the execution that wrote it")]
    seq: Annotated[int | None, describe("the number of its event")]
    by: Annotated[str | None, describe("the person that wrote it")]
    at: str


class StatePageView(View, frozen=True):
    state: list[StateView]
    next: Annotated[str | None, describe("`after` of the next page; null: there is none")]


class StateOfPathView(View, frozen=True):
    path: str
    state: list[StateView]


class StateVersionView(StateView, frozen=True):
    unset: Annotated[bool, describe("this version took the value away")]


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

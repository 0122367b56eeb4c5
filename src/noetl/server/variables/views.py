"""The structs that answers about variables have."""

from typing import Annotated, Any

from noetl.server.http.structs import View, describe


class VarsView(View, frozen=True):
    execution_id: str
    vars: Annotated[
        dict[str, Any],
        describe(
            "a stored value of more than 64 KB is {'$reference': …}; ask for it by its name",
            example={"total": 3},
        ),
    ]


class VarView(View, frozen=True):
    execution_id: str
    name: str
    value: Any

"""Columns that several adapters read or write. Ids are texts in the model and numbers in the tables."""

from collections.abc import Sequence
from typing import Any

from noetl.model.ids import ExecutionId
from noetl.model.messages import Message, StoredRef
from noetl.model.reference import Lifetime, Reference
from noetl.postgres.pool import Record


def to_execution_id(number: int) -> ExecutionId:
    return ExecutionId(str(number))


def to_number(execution_id: ExecutionId | None) -> int | None:
    return None if execution_id is None else int(execution_id)


def read_first_value(rows: Sequence[Record], default: int) -> int:
    if not rows:
        return default
    value: int = rows[0][0]
    return value


def split_message_columns(message: Message) -> tuple[str, str | None]:
    """The kind of a message, and the command if it is a report."""
    kind = str(type(message).__struct_config__.tag)
    if kind != "report":
        return kind, None
    return kind, getattr(message, "command_id", None)


def make_ref_row(ref: StoredRef) -> tuple[Any, ...]:
    """The columns of result_ref and result_blob, in the order of the `r_` parameters."""
    reference = ref.reference
    return (
        int(reference.ref_id),
        reference.type,
        reference.uri,
        reference.sha256,
        reference.bytes,
        reference.rows,
        reference.format,
        None if ref.parent is None else int(ref.parent),
        ref.payload,
    )


def make_lifetime_row(reference: Reference, lifetime: Lifetime) -> dict[str, Any]:
    return {"ref": int(reference.ref_id), "scope": lifetime.scope, "ttl": lifetime.ttl}

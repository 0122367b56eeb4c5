"""Columns that several adapters read or write. Ids are texts in the model and numbers in the tables."""

from collections.abc import Sequence
from typing import Annotated, Any

from msgspec import Struct

from noetl.model.ids import ExecutionId
from noetl.model.messages import Message, StoredRef
from noetl.model.reference import Lifetime, Reference
from noetl.postgres.arrays import format_documents, format_numbers, format_texts
from noetl.postgres.pool import Record

# A column's type, and how an array of it is passed.
Number = Annotated[int | None, format_numbers]
Text = Annotated[str | None, format_texts]
Document = Annotated[str | None, format_documents]
Payload = Annotated[bytes | None, list]


def to_execution_id(number: int) -> ExecutionId:
    return ExecutionId(str(number))


def to_number(execution_id: ExecutionId | None) -> int | None:
    return None if execution_id is None else int(execution_id)


def read_seq(rows: Sequence[Record]) -> int:
    """The sequence number in the first row; 0 if there is none."""
    if not rows:
        return 0
    seq: int = rows[0]["seq"]
    return seq


def split_message_columns(message: Message) -> tuple[str, str | None]:
    """The kind of a message, and the command if it is a report."""
    kind = str(type(message).__struct_config__.tag)
    if kind != "report":
        return kind, None
    return kind, getattr(message, "command_id", None)


class RefRow(Struct, gc=False):
    """The parameters `r_…`: a reference, and its payload if that is small. `part` is the number of
    its part in a batch.
    """

    part: Number
    id: Number
    tier: Text
    uri: Text
    sha256: Text
    size: Number
    rows: Number
    format: Text
    parent: Number
    inputs: Text  # an array
    payload: Payload


def make_ref_row(ref: StoredRef, part: int) -> RefRow:
    reference = ref.reference
    return RefRow(
        part=part,
        id=int(reference.ref_id),
        tier=reference.type,
        uri=reference.uri,
        sha256=reference.sha256,
        size=reference.bytes,
        rows=reference.rows,
        format=reference.format,
        parent=None if ref.parent is None else int(ref.parent),
        inputs=_format_inputs(ref),
        payload=ref.payload,
    )


def _format_inputs(ref: StoredRef) -> str | None:
    if not ref.inputs:
        return None
    return format_numbers([int(input_id) for input_id in dict.fromkeys(ref.inputs)])


def make_lifetime_row(reference: Reference, lifetime: Lifetime) -> dict[str, Any]:
    return {"ref": int(reference.ref_id), "scope": lifetime.scope, "ttl": lifetime.ttl}

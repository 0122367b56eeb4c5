"""The structs that answers about the audit trail have."""

from typing import Annotated

from noetl.audit.port import AuditHead, AuditOutcome, AuditPage, ChainedEntry, decode_entry
from noetl.model.clock import format_iso
from noetl.model.ids import Micros, Tenant
from noetl.server.http.structs import View, describe

EXAMPLE_HASH = "9f2c" * 16


class AuditEntryView(View, frozen=True):
    seq: Annotated[int, describe("the place in the chain", example=42)]
    at: str
    operation: Annotated[str, describe(example="token.revoke")]
    object: Annotated[str | None, describe("what was changed", example="f3Qk0aLs9ZxY")]
    outcome: Annotated[AuditOutcome, describe("allowed entries are written before the change")]
    by: Annotated[str | None, describe("who; null: a caller without a known token", example="ci")]
    token_id: Annotated[str | None, describe("of the caller")]
    address: Annotated[str | None, describe("of the caller", example="127.0.0.1")]
    request_id: Annotated[str | None, describe("the answer had it as `X-Request-Id`")]
    code: Annotated[str | None, describe("of the error")]
    count: Annotated[int, describe("calls that this entry stands for")]
    detail: Annotated[dict[str, str | int | bool | None], describe(example={"version": 3})]
    hash: Annotated[str, describe("of this entry and the one before it", example=EXAMPLE_HASH)]


class AuditView(View, frozen=True):
    entries: list[AuditEntryView]
    next: Annotated[int | None, describe("the `before` of the next page; null: no more")]


class ChainedEntryView(View, frozen=True):
    seq: int
    at_us: Annotated[Micros, describe("microseconds since 1970")]
    text: Annotated[str, describe("the text that is summed")]
    hash: Annotated[str, describe(example=EXAMPLE_HASH)]


class AuditHeadView(View, frozen=True):
    seq: int
    hash: Annotated[str, describe(example=EXAMPLE_HASH)]


class AuditChainView(View, frozen=True):
    tenant: Tenant
    entries: list[ChainedEntryView]
    head: Annotated[AuditHeadView | None, describe("null: the chain has no entries")]


def make_entry_view(entry: ChainedEntry) -> AuditEntryView:
    content = decode_entry(entry.text)
    return AuditEntryView(
        seq=entry.seq,
        at=format_iso(entry.at),
        operation=content.operation,
        object=content.object,
        outcome=content.outcome,
        by=content.by,
        token_id=content.token_id,
        address=content.address,
        request_id=content.request_id,
        code=content.code,
        count=content.count,
        detail=dict(content.detail),
        hash=entry.hash,
    )


def make_chain_view(tenant: Tenant, page: AuditPage) -> AuditChainView:
    entries: list[ChainedEntryView] = []
    for entry in page.entries:
        view = ChainedEntryView(entry.seq, entry.at, entry.text, entry.hash)
        entries.append(view)
    head = _make_head_view(page.head)
    return AuditChainView(tenant, entries, head)


def _make_head_view(head: AuditHead | None) -> AuditHeadView | None:
    if head is None:
        return None
    return AuditHeadView(head.seq, head.hash)

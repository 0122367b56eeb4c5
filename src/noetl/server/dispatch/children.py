"""Prepares children that a decision starts: looks up and pins their playbooks before the append.

If a child cannot be started (its playbook is missing or invalid, or its workload is bad), the
parent gets a notice that the child of this call has ended with that failure, so that it can route
on it. A workload that is too large for an event comes by reference: the report carries its payload,
or the payload is stored already.
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from noetl.model.decisions import Effect, Send, StartChild
from noetl.model.envelope import make_failed_envelope
from noetl.model.errors import Failure, InvalidInput
from noetl.model.events import ChildEnded
from noetl.model.ids import BY_EXECUTION, ExecutionId, RefId, Tenant
from noetl.model.messages import Notice, Start, StoredRef
from noetl.model.reference import Reference, parse_uri
from noetl.playbook.workload import WORKLOAD_LIMIT_BYTES
from noetl.server.dispatch.pins import ChildPins
from noetl.server.dispatch.playbooks import Playbooks


class PreparedChildren(Struct):
    """Effects to write, and the starts of the children among them."""

    effects: list[Effect] = field(default_factory=list)
    starts: list[Start] = field(default_factory=list)


class Children:
    """Turns `StartChild` effects into starts."""

    def __init__(
        self,
        playbooks: Playbooks,
        new_id: Callable[[], ExecutionId],
        blob: Callable[[Tenant, RefId, str], Awaitable[bytes | None]],
    ) -> None:
        self._playbooks = playbooks
        self.pins = ChildPins(playbooks)
        self._new_id = new_id
        self._blob = blob

    async def prepare(
        self, tenant: Tenant, effects: tuple[Effect, ...], refs: Iterable[StoredRef]
    ) -> PreparedChildren:
        """The same effects with merged workloads, and a `Start` for each child, in order.

        `refs` are the payloads of the report that led to these effects.
        """
        prepared = PreparedChildren()
        for effect in effects:
            if not isinstance(effect, StartChild):
                prepared.effects.append(effect)
                continue
            try:
                whole = await self._load_workload(tenant, effect, refs)
                start, workload = await self._make_start(tenant, whole)
            except InvalidInput as error:
                prepared.effects.append(_make_failure_notice(effect, error))
                continue
            prepared.effects.append(replace(effect, workload=workload, reference=None))
            prepared.starts.append(start)
        return prepared

    async def _load_workload(
        self, tenant: Tenant, effect: StartChild, refs: Iterable[StoredRef]
    ) -> StartChild:
        """The effect with its workload, if that comes by reference."""
        if effect.reference is None:
            return effect
        if parse_uri(effect.reference.uri).execution_id != effect.parent.execution_id:
            raise InvalidInput(
                "the input of a child is its parent's",
                hint="a worker has named what is not its own",
            )
        workload = await self._read_workload(tenant, effect.reference, refs)
        return replace(effect, workload=workload)

    async def _read_workload(
        self, tenant: Tenant, reference: Reference, refs: Iterable[StoredRef]
    ) -> dict[str, Any]:
        reported = (ref.payload for ref in refs if ref.reference.ref_id == reference.ref_id)
        data = next(reported, None)
        if not data:
            data = await self._blob(tenant, reference.ref_id, reference.uri)
        if data is None:
            raise InvalidInput(
                f"the input of the child is {reference.bytes} bytes, the limit is {WORKLOAD_LIMIT_BYTES}",
                hint="let the child read large data itself: from a table, a file or an address",
            )
        return msgspec.json.decode(data, type=dict[str, Any])

    async def _make_start(
        self, tenant: Tenant, effect: StartChild
    ) -> tuple[Start, dict[str, object]]:
        entry = await self._playbooks.find_catalog_entry(effect.path, effect.version, tenant)
        plan = await self._playbooks.get_plan(entry.hash, tenant)
        execution_id = self._new_id()
        workload = await self._playbooks.make_workload(entry, tenant, execution_id, effect.workload)
        parent = None if effect.detached else effect.parent  # nobody waits for a detached child
        start = Start(
            execution_id=execution_id,
            path=entry.path,
            playbook=entry.hash,
            version=entry.version,
            tenant=tenant,
            by=f"{BY_EXECUTION}{effect.parent.execution_id}",
            parent=parent,
            depth=effect.depth,
            return_step=effect.return_step,
            pins=await self.pins.pin_at_start(plan, tenant, effect.pins),
            workload_by_reference=effect.reference is not None,
        )
        return start, workload


def _make_failure_notice(effect: StartChild, error: InvalidInput) -> Send:
    """The notice that a child of this call has failed."""
    failure = Failure(
        code=error.code,
        message=str(error),
        kind="child",
        detail={"path": effect.path},
    )
    ended = ChildEnded(call=effect.parent.call, child=None, result=make_failed_envelope(failure))
    return Send(effect.parent.execution_id, Notice(event=ended))

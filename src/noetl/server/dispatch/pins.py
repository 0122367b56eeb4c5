"""Pinned children: which version of a child playbook an execution calls.

When an execution starts, the server looks up the latest version of every child that its playbook
names literally, and the children of those. The first event carries these versions; a child
execution takes them over from its parent. A child that a template names is looked up at its first
call, and the event of that call carries the version. So registering a playbook again does not
change what a running execution calls, and a replay needs nothing but the log.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from noetl.engine.state import Execution
from noetl.model.errors import InvalidInput
from noetl.model.events import CommandParked
from noetl.model.ids import Tenant
from noetl.model.messages import Report
from noetl.playbook.children import asks_latest, calls_children, literal_children
from noetl.playbook.plan import Plan
from noetl.server.dispatch.playbooks import Playbooks

MAX_PINS_BYTES = 8 * 1024  # in the first event; children beyond it are pinned at their first call

Pins = dict[str, int]


class ChildPins:
    """Finds the versions of child playbooks."""

    def __init__(self, playbooks: Playbooks) -> None:
        self._playbooks = playbooks

    async def pin_at_start(
        self,
        plan: Plan,
        tenant: Tenant,
        known: Pins | None = None,
    ) -> Pins:
        """Versions by path; empty for a playbook without children.

        `known` are the parent's pins, which stay as they are.
        """
        if not calls_children(plan.playbook):
            return {}
        pins = dict(known or {})
        size = sum(map(_estimate_pin_bytes, pins))
        seen: set[tuple[str, str | None]] = set()
        pending = list(literal_children(plan.playbook))
        while pending:
            path, version = pending.pop(0)
            if (path, version) in seen:
                continue
            seen.add((path, version))
            if version is None and path not in pins:
                size += _estimate_pin_bytes(path)
                if size > MAX_PINS_BYTES:
                    return pins
            pending += await self._pin_child(path, version, tenant, pins)
        return pins

    async def _pin_child(
        self, path: str, version: str | None, tenant: Tenant, pins: Pins
    ) -> Iterable[tuple[str, str | None]]:
        """Pin the child and return its own children.

        A child that is missing or cannot run is skipped: its call fails later.
        """
        wanted = pins.get(path) if version is None else version
        try:
            entry = await self._playbooks.find_catalog_entry(path, wanted, tenant)
            if version is None:
                pins[path] = entry.version
            plan = await self._playbooks.get_plan(entry.hash, tenant)
            return literal_children(plan.playbook)
        except InvalidInput:
            return ()

    async def pin_at_call(self, message: Report, state: Execution, tenant: Tenant) -> Report:
        """The report of a parked command, with the child's version if it is the first call of an
        unpinned child."""
        assert isinstance(message.event, CommandParked)
        child = message.event.child
        if child is None or not asks_latest(child.version) or child.path in state.pins:
            return message
        try:
            entry = await self._playbooks.find_catalog_entry(child.path, None, tenant)
        except InvalidInput:
            return message
        event = replace(message.event, child=replace(child, pinned=entry.version))
        return replace(message, event=event)


def _estimate_pin_bytes(path: str) -> int:
    return len(path) + 12  # quotes, colon, comma and the number

"""State between executions, as people read and change it.

Executions do not use this service: the dispatcher writes their state with their events.
"""

from typing import Any

from noetl.log.playbook_state.port import PlaybookStateStore, StateRow
from noetl.model.errors import InvalidInput, NotFound
from noetl.model.identity import Identity, Permission, needs
from noetl.model.playbook_state import MAX_STATE_VERSIONS, StateValue, find_name_problem
from noetl.server.catalog.service import MAX_PATH_CHARS, CatalogService
from noetl.server.http.structs import extend_view
from noetl.server.state.views import (
    StateHistoryView,
    StateOfPathView,
    StatePageView,
    StateUnsetView,
    StateVersionView,
    StateView,
    make_state_view,
)

MAX_VERSION = (1 << 63) - 1


class PlaybookStateService:
    def __init__(self, state: PlaybookStateStore, catalog: CatalogService) -> None:
        self._state = state
        self._catalog = catalog

    @needs(Permission.READ)
    async def list_page(
        self, identity: Identity, after: str = "", limit: int = 100
    ) -> StatePageView:
        """A page of the values of all playbooks, sorted by path and name."""
        path, _, name = after.rpartition("#")
        rows = await self._state.list_state(identity.tenant, (path, name), limit)
        following = None
        if len(rows) == limit:
            last = rows[-1]
            following = f"{last.path}#{last.name}"
        return StatePageView([make_state_view(row) for row in rows], following)

    @needs(Permission.READ)
    async def list_state_values(self, identity: Identity, path: str) -> StateOfPathView:
        """The values of one playbook, sorted by name."""
        rows = await self._state.read_state(identity.tenant, _check_catalog_path(path))
        return StateOfPathView(path, [make_state_view(row) for row in rows if not row.unset])

    @needs(Permission.READ)
    async def get(self, identity: Identity, path: str, name: str) -> StateView:
        names = [_check_value_name(name)]
        rows = await self._state.read_state(identity.tenant, _check_catalog_path(path), names)
        if not rows or rows[0].unset:
            raise NotFound(
                f"{path} has no state value {name!r}",
                hint=f"noetl state list {path} shows those it has",
            )
        return make_state_view(rows[0])

    @needs(Permission.WRITE)
    async def put(
        self,
        identity: Identity,
        path: str,
        name: str,
        value: Any,
        expected_version: int | None = None,
    ) -> StateView:
        """Write a value. Raises `NotFound` if the catalog has no playbook of this path."""
        await self._catalog.get(identity, _check_catalog_path(path))
        written = StateValue(0, value)
        await self._state.put_state(
            identity.tenant, path, name, written, expected_version, identity.name
        )
        return await self.get(identity, path, name)

    @needs(Permission.WRITE)
    async def unset(
        self, identity: Identity, path: str, name: str, expected_version: int | None = None
    ) -> StateUnsetView:
        """Take the value away; the answer has the version of this change."""
        await self.get(identity, path, name)
        unset = StateValue(0, unset=True)
        version = await self._state.put_state(
            identity.tenant, path, name, unset, expected_version, identity.name
        )
        return StateUnsetView(path, name, version)

    @needs(Permission.READ)
    async def read_history(
        self,
        identity: Identity,
        path: str,
        name: str,
        before: int | None = None,
        limit: int = MAX_STATE_VERSIONS,
    ) -> StateHistoryView:
        """The versions of a value, newest first."""
        older_than = MAX_VERSION if before is None else before
        rows = await self._state.read_history(
            identity.tenant, _check_catalog_path(path), _check_value_name(name), older_than, limit
        )
        if not rows and before is None:
            raise NotFound(
                f"{path} never had a state value {name!r}", hint=f"noetl state list {path}"
            )
        return StateHistoryView([_make_version_view(row) for row in rows])


def _make_version_view(row: StateRow) -> StateVersionView:
    return extend_view(StateVersionView, make_state_view(row), unset=row.unset)


def _check_catalog_path(path: str) -> str:
    if not path or len(path) > MAX_PATH_CHARS or "\x00" in path:
        raise InvalidInput(
            f"{path[:80]!r} cannot be a catalog path",
            hint="noetl catalog list shows those there are",
        )
    return path


def _check_value_name(name: str) -> str:
    problem = find_name_problem(name)
    if problem is not None:
        raise InvalidInput(problem)
    return name

"""Playbooks as people register and read them.

The catalog holds only playbooks that can run; any other text is refused with findings.
"""

import asyncio
import re
from difflib import unified_diff
from typing import Any

from noetl.caches import LruCache
from noetl.catalog.port import Catalog, CatalogEntry, Vault, hash_text
from noetl.model.errors import InvalidInput, NotFound
from noetl.model.identity import Identity, Permission, needs
from noetl.playbook.children import literal_children
from noetl.playbook.credential_names import literal_credentials
from noetl.playbook.findings import Finding
from noetl.playbook.missing_warnings import warn_unknown_credential, warn_unknown_playbook
from noetl.playbook.model import Playbook
from noetl.playbook.validation import Kinds, PlaybookInvalid, load
from noetl.server.audit.recorder import AuditRecorder
from noetl.server.catalog.graph import make_graph_view
from noetl.server.catalog.views import (
    DifferenceView,
    EntriesView,
    FindingView,
    GraphView,
    PlaybookView,
    RegisteredView,
    VersionsView,
    make_entry_view,
    make_playbook_view,
)

_PATH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*(/[A-Za-z0-9_][A-Za-z0-9_.\-]*)*", re.ASCII)
MAX_PATH_CHARS = 200
MAX_CACHED_GRAPHS = 64


class CatalogService:
    """`kinds` are tools of installed packages. With a `vault`, `register` warns of missing
    credentials."""

    def __init__(
        self,
        catalog: Catalog,
        kinds: Kinds | None = None,
        vault: Vault | None = None,
        *,
        audit: AuditRecorder,
    ) -> None:
        self._catalog = catalog
        self._kinds = kinds
        self._vault = vault
        self._audit = audit
        self._graphs: LruCache[str, GraphView] = LruCache(MAX_CACHED_GRAPHS)

    @needs(Permission.WRITE)
    async def register(
        self, identity: Identity, text: str, path: str | None = None
    ) -> RegisteredView:
        """Validate and store a playbook under this path, its own path, or its name."""
        loaded = await asyncio.to_thread(load, text, file=path or "playbook", kinds=self._kinds)
        playbook = loaded.playbook
        if playbook is None:
            raise PlaybookInvalid(loaded.findings)
        catalog_path = path or playbook.metadata.path or playbook.metadata.name
        if not _PATH.fullmatch(catalog_path) or len(catalog_path) > MAX_PATH_CHARS:
            raise InvalidInput(
                f"{catalog_path[:200]!r} cannot be a catalog path",
                hint=f"letters, digits, '_', '-', '.' in parts joined by '/', at most {MAX_PATH_CHARS} characters",
            )
        before = await self._catalog.find(catalog_path, tenant=identity.tenant)
        entry = await self._store_text(identity, catalog_path, text, before)
        created = before is None or entry.version > before.version
        missing = await self._find_missing(identity, playbook, text)
        findings = [_make_finding_view(finding) for finding in (*loaded.findings, *missing)]
        return RegisteredView(entry.path, entry.version, entry.hash, created, findings)

    async def _store_text(
        self, identity: Identity, path: str, text: str, before: CatalogEntry | None
    ) -> CatalogEntry:
        """Store a text. The audit trail gets an entry if it is not the latest one of its path."""
        content = hash_text(text)
        old = None if before is None else before.hash
        if old == content:
            return await self._catalog.register(path, text, identity.tenant)
        async with self._audit.record(
            identity, "playbook.register", path, hash=content, replaced=old
        ):
            return await self._catalog.register(path, text, identity.tenant)

    async def _find_missing(
        self, identity: Identity, playbook: Playbook, text: str
    ) -> list[Finding]:
        """Warnings about children and credentials that the playbook names and that do not exist.

        They may be added later, so these are no errors.
        """
        findings: list[Finding] = []
        for path, version in literal_children(playbook):
            number = None
            if version is not None and version.isdigit():
                number = int(version)
            if await self._catalog.find(path, number, identity.tenant) is None:
                findings.append(warn_unknown_playbook(text, path, version))
        if self._vault is None:
            return findings
        for name in literal_credentials(playbook):
            if await self._vault.find(identity.tenant, name) is None:
                findings.append(warn_unknown_credential(text, name))
        return findings

    @needs(Permission.READ)
    async def list_latest(
        self, identity: Identity, prefix: str = "", after: str = "", limit: int = 100
    ) -> EntriesView:
        """The latest version of each playbook, sorted by path."""
        entries = await self._catalog.list_latest_entries(prefix, after, limit, identity.tenant)
        following = entries[-1].path if len(entries) == limit else None
        return EntriesView([make_entry_view(entry) for entry in entries], following)

    @needs(Permission.READ)
    async def get(
        self,
        identity: Identity,
        path: str,
        version: int | None = None,
    ) -> PlaybookView:
        return make_playbook_view(await self._find_entry(identity, path, version))

    async def _find_entry(
        self, identity: Identity, path: str, version: int | None = None
    ) -> CatalogEntry:
        entry = await self._catalog.find(path, version, identity.tenant)
        if entry is not None:
            return entry
        if version is not None:
            latest = await self._find_entry(identity, path)
            raise NotFound(
                f"no playbook {path!r} version {version}",
                hint=f"its latest version is {latest.version}",
            )
        raise NotFound(
            f"no playbook {path!r}",
            hint="noetl catalog list shows what there is; noetl catalog register adds one",
        )

    @needs(Permission.READ)
    async def get_by_hash(self, identity: Identity, content: str) -> PlaybookView:
        return make_playbook_view(await self._find_by_hash(identity, content))

    @needs(Permission.READ)
    async def get_graph(self, identity: Identity, content: str) -> GraphView:
        """The steps and arcs of the text with this hash, with their lines."""
        entry = await self._find_by_hash(identity, content)
        graph = self._graphs.get(entry.hash)
        if graph is None or graph.path != entry.path:
            graph = await asyncio.to_thread(make_graph_view, entry)
            self._graphs.put(entry.hash, graph)
        return graph

    async def _find_by_hash(self, identity: Identity, content: str) -> CatalogEntry:
        entry = await self._catalog.find_by_hash(content, identity.tenant)
        if entry is None:
            raise NotFound(
                f"no playbook has the hash {content}", hint="noetl catalog list shows what there is"
            )
        return entry

    @needs(Permission.READ)
    async def list_playbook_versions(
        self, identity: Identity, path: str, before: int | None = None, limit: int = 50
    ) -> VersionsView:
        """A page of the versions of a playbook, newest first."""
        await self._find_entry(identity, path)
        entries = await self._catalog.list_path_versions(path, before, limit, identity.tenant)
        has_more = len(entries) == limit and entries[-1].version > 1
        following = entries[-1].version if has_more else None
        return VersionsView([make_entry_view(entry) for entry in entries], following)

    @needs(Permission.READ)
    async def diff_versions(
        self, identity: Identity, path: str, older: int, newer: int | None = None
    ) -> DifferenceView:
        """Compare two versions line by line; `newer` None is the latest."""
        first = await self._find_entry(identity, path, older)
        second = await self._find_entry(identity, path, newer)
        diff = await asyncio.to_thread(_make_diff, first, second)
        return DifferenceView(path, first.version, second.version, diff)


def _make_finding_view(finding: Finding) -> FindingView:
    described: dict[str, Any] = finding.to_dict()
    return FindingView(**described)


def _make_diff(older: CatalogEntry, newer: CatalogEntry) -> str:
    lines = unified_diff(
        older.text.splitlines(),
        newer.text.splitlines(),
        fromfile=f"{older.path}@{older.version}",
        tofile=f"{newer.path}@{newer.version}",
        lineterm="",
    )
    return "".join(f"{line}\n" for line in lines)

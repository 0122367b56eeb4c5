"""Items of a loop, and the input and output of a step, for a caller."""

from typing import Any, Literal

from noetl.log.events.port import EventLog, EventName
from noetl.log.lineage.port import Lineage
from noetl.model import events as e
from noetl.model.clock import format_iso
from noetl.model.envelope import Envelope, Input, Meta
from noetl.model.errors import Conflict, InvalidInput, NotFound
from noetl.model.identity import Identity, Permission, needs
from noetl.model.ids import CommandId, ExecutionId, RefId, Tenant
from noetl.model.messages import RetryChoice
from noetl.model.reference import Reference, derive_ref_id
from noetl.model.secrets import strip_secrets
from noetl.server.dispatch.states import LoadedState, States
from noetl.server.executions.access import Access
from noetl.server.http.structs import extend_view
from noetl.server.items.children import find_item_children
from noetl.server.items.choices import find_unfailed_items
from noetl.server.items.inputs import ItemReader, find_command_id
from noetl.server.items.runs import StepRun, find_collection, find_run, search_run
from noetl.server.items.scan import (
    FoundRow,
    Matches,
    PartRange,
    PartScan,
    ReadRows,
    ScanPage,
    ScanPosition,
    find_item_row,
    parse_position,
)
from noetl.server.items.shown_values import cut_value, has_text, is_of_kind, make_item_error
from noetl.server.items.times import make_times_view
from noetl.server.items.views import (
    ItemsPageView,
    ItemTimesView,
    ItemView,
    ReferenceView,
    ShownDataView,
    ShownOutputView,
    StepDataView,
    make_kind_view,
)
from noetl.server.results.origins import TenantManifests, read_metas
from noetl.server.results.service import ResultService
from noetl.server.results.views import describe_reference, make_preview_view

ItemStatus = Literal["failed", "ok", "skipped", "all"]
ROW_STATUSES = {"failed": "error", "ok": "ok", "skipped": "skipped"}
PREVIEW_ROWS = 20
MAX_REF_ID = (1 << 63) - 1


class ItemService:
    """Reads items and data of steps. All data is opened through the port of `ResultService`."""

    def __init__(
        self,
        log: EventLog,
        lineage: Lineage,
        states: States,
        access: Access,
        results: ResultService,
    ) -> None:
        self._log = log
        self._lineage = lineage
        self._states = states
        self._access = access
        self._results = results

    @needs(Permission.READ)
    async def list_items(
        self,
        identity: Identity,
        execution_id: ExecutionId,
        step: str,
        *,
        run: int | None = None,
        status: ItemStatus = "failed",
        kind: int | None = None,
        after: str | None = None,
        limit: int = 50,
        q: str | None = None,
        within: PartRange | None = None,
    ) -> ItemsPageView:
        """A page of the items of a loop. `kind` is the number of one of its kinds of failures;
        `within` are the items of a command."""
        loaded = await self._load(identity, execution_id)
        found_run = await self._find_run(identity, loaded, step, run)
        stats = found_run.stats
        if stats is None:
            raise NotFound(
                f"step {step!r} is no loop: it has no items",
                hint=f"noetl result show {execution_id} {step} shows its result",
            )
        read_rows = self._make_row_reader(identity)
        matches = _make_filter(found_run, status, kind, q)
        only_failed = status == "failed" or kind is not None
        page = ScanPage([], 0, 0, None)
        if found_run.manifest is not None:
            scan = PartScan(
                TenantManifests(self._log, identity.tenant),
                read_rows,
                matches,
                limit,
                only_failed=only_failed,
                within=within,
            )
            page = await scan.run(found_run.manifest, parse_position(after))
        tenant = identity.tenant
        items = await self._make_item_views(tenant, loaded, found_run, read_rows, page.found)
        return ItemsPageView(
            step=step,
            run=found_run.run,
            total=stats.total if found_run.has_total else None,
            ok=stats.ok,
            failed=stats.failed,
            skipped=stats.skipped,
            items=items,
            kinds=[make_kind_view(each) for each in found_run.kinds],
            next=None if page.next is None else str(page.next),
            looked_at=page.looked_at,
        )

    @needs(Permission.READ)
    async def show_times(
        self,
        identity: Identity,
        execution_id: ExecutionId,
        step: str,
        run: int | None,
        within: PartRange,
    ) -> ItemTimesView:
        """How long the items of a command took, in the order of their indexes."""
        loaded = await self._load(identity, execution_id)
        found_run = await self._find_run(identity, loaded, step, run)
        page = ScanPage([], 0, 0, None)
        if found_run.manifest is not None:
            limit = within.end - within.first
            scan = PartScan(
                TenantManifests(self._log, identity.tenant),
                self._make_row_reader(identity),
                lambda row: True,
                limit,
                only_failed=False,
                within=within,
            )
            page = await scan.run(found_run.manifest, ScanPosition())
        return make_times_view(step, found_run.run, page)

    @needs(Permission.READ)
    async def show_data(
        self,
        identity: Identity,
        execution_id: ExecutionId,
        step: str,
        run: int | None = None,
        item: int | None = None,
    ) -> StepDataView:
        """The input beside the output: of the run of a step, or of one item of its loop."""
        loaded = await self._load(identity, execution_id)
        found_run = await self._find_run(identity, loaded, step, run)
        if item is not None:
            return await self._show_item(identity, loaded, found_run, item)
        result = found_run.result
        meta = await self._find_meta(identity, execution_id, found_run)
        return StepDataView(
            step=step,
            run=found_run.run,
            item=None,
            input=await self._show_input(identity, meta, found_run.args),
            output=await self._show_output(identity, result),
        )

    @needs(Permission.READ)
    async def find_item_part(
        self, identity: Identity, execution_id: ExecutionId, step: str, item: int
    ) -> RefId:
        """The payload that has the result of an item. Raises `NotFound`."""
        loaded = await self._load(identity, execution_id)
        run = await self._find_run(identity, loaded, step, None)
        found = await self._find_item(identity, run, item)
        return found.part.reference.ref_id

    @needs(Permission.READ)
    async def preview_reference(
        self,
        identity: Identity,
        execution_id: ExecutionId,
        ref_id: str,
        rows: int,
        start: int = 0,
        sort: str | None = None,
    ) -> ReferenceView:
        """A preview of a payload: of a result of this execution, or of what it was made from."""
        loaded = await self._load(identity, execution_id)
        reference, expired_at = await self._find_reference(identity, loaded, ref_id)
        described = describe_reference(reference) or {}
        if expired_at is not None:
            return ReferenceView(described, None, start, expired_at)
        port = await self._results.open_results(identity, reference)
        preview = await port.preview(reference, rows, start, sort)
        return ReferenceView(described, make_preview_view(preview), start, None)

    @needs(Permission.READ)
    async def check_chosen_items(
        self, identity: Identity, execution_id: ExecutionId, only: RetryChoice
    ) -> None:
        """Raise `Conflict` unless all chosen items have failed, each with a failure of its own."""
        loaded = await self._load(identity, execution_id)
        read_rows = self._make_row_reader(identity)
        for step, indexes in only.items.items():
            run = await self._find_run(identity, loaded, step, None)
            manifests = TenantManifests(self._log, identity.tenant)
            others = await find_unfailed_items(manifests, read_rows, run.manifest, set(indexes))
            if others:
                raise Conflict(
                    f"item {others[0]} of step {step!r} has no failure of its own",
                    hint="choose items that are listed as failed, or retry all that did not finish",
                )

    # -- helpers of items --

    async def _load(self, identity: Identity, execution_id: ExecutionId) -> LoadedState:
        await self._access.check_tenant(identity, execution_id)
        loaded = await self._states.read(execution_id)
        if loaded is None:
            raise NotFound(f"no execution {execution_id}")
        return loaded

    async def _find_run(
        self, identity: Identity, loaded: LoadedState, step: str, run: int | None
    ) -> StepRun:
        """A run of the step. Its result may belong to an earlier execution, of the same tenant."""
        found = await find_run(self._log, loaded.state, step, run)
        if found.manifest is not None:
            await self._access.check_tenant(identity, found.manifest.execution_id)
        return found

    def _make_row_reader(self, identity: Identity) -> ReadRows:
        async def read_rows(reference: Reference, start: int, stop: int) -> list[Any]:
            port = await self._results.open_results(identity, reference)
            return await port.read_rows(reference, start, stop)

        return read_rows

    async def _make_item_views(
        self,
        tenant: Tenant,
        loaded: LoadedState,
        run: StepRun,
        read_rows: ReadRows,
        found: list[FoundRow],
    ) -> list[ItemView]:
        if not found:
            return []
        collection = await find_collection(self._log, run)
        reader = ItemReader(self._log, read_rows, loaded, run, collection)
        items = await reader.read_items(found)
        workers = await self._find_workers(loaded.fixed.execution_id, found)
        children = await find_item_children(self._log, tenant, loaded.fixed, run.step, found)
        return [_make_item_view(row, items, workers, children) for row in found]

    async def _find_workers(
        self,
        execution_id: ExecutionId,
        found: list[FoundRow],
    ) -> dict[CommandId, str]:
        """The workers that reported the ends of these commands."""
        commands: dict[CommandId, RefId] = {}
        for row in found:
            command = find_command_id(row)
            if command is not None:
                commands[command] = row.part.reference.ref_id
        names = [EventName(execution_id, f"command:{command}:end") for command in commands]
        recorded = await self._log.read_named_events(names, set(commands.values()))
        ends = [each.event for each in recorded]
        return {
            event.command_id: event.worker
            for event in ends
            if isinstance(event, e.CommandCompleted | e.CommandFailed)
        }

    async def _show_item(
        self,
        identity: Identity,
        loaded: LoadedState,
        run: StepRun,
        index: int,
    ) -> StepDataView:
        read_rows = self._make_row_reader(identity)
        found = await self._find_item(identity, run, index)
        tenant = identity.tenant
        (view,) = await self._make_item_views(tenant, loaded, run, read_rows, [found])
        error = found.row.get("error")
        return StepDataView(
            step=run.step,
            run=run.run,
            item=index,
            input=ShownDataView(view.item, None, _is_cut(view.item)),
            output=ShownOutputView(view.value, None, _is_cut(view.value), view.status, error),
        )

    async def _find_item(self, identity: Identity, run: StepRun, index: int) -> FoundRow:
        found = None
        if run.manifest is not None and run.stats is not None:
            manifests = TenantManifests(self._log, identity.tenant)
            read_rows = self._make_row_reader(identity)
            found = await find_item_row(manifests, read_rows, run.manifest, index)
        if found is None:
            raise NotFound(
                f"item {index} of step {run.step!r} has no result",
                hint=f"it has not run, or its command failed as a whole; run {run.run} of the step has "
                f"{0 if run.stats is None else run.stats.total} items",
            )
        return found

    # -- helpers of data --

    async def _find_meta(
        self, identity: Identity, execution_id: ExecutionId, run: StepRun
    ) -> Meta | None:
        """The metadata of the call that ended the run. A failed call has no reference that leads to
        it: its command is found in the log."""
        result = run.result
        if result is None:
            return None
        if result.reference is not None:
            await self._access.check_reference(identity, result.reference)
            metas = await read_metas(self._log, [result.reference])
            return metas.get(result.reference.ref_id, result.meta)
        command = run.command_id
        if command is None:
            searched = await search_run(self._log, execution_id, run.step, run.run)
            command = None if searched is None else searched.command_id
        if command is None:
            return result.meta
        name = EventName(execution_id, f"command:{command}:end")
        for recorded in await self._log.read_named_events([name]):
            event = recorded.event
            if isinstance(event, e.CommandCompleted | e.CommandFailed):
                return event.result.meta
        return result.meta

    async def _show_input(
        self,
        identity: Identity,
        meta: Meta | None,
        args: dict[str, Any],
    ) -> ShownDataView:
        given = Input() if meta is None or meta.input is None else meta.input
        if given.ref is not None:
            reference = await self._find_stored_input(identity, given.ref)
            if reference is not None:
                return await self._show_reference(identity, reference)
        value = given.value if given.value is not None else args or None
        shown, is_cut = cut_value(strip_secrets(value))
        return ShownDataView(shown, None, is_cut)

    async def _show_output(self, identity: Identity, result: Envelope | None) -> ShownOutputView:
        if result is None:
            return ShownOutputView(None, None, False, None, None)
        error = None if result.error is None else result.error.to_template_map()
        if result.reference is None:
            return ShownOutputView(None, None, False, result.status, error)
        shown = await self._show_reference(identity, result.reference)
        return extend_view(ShownOutputView, shown, status=result.status, error=error)

    async def _show_reference(self, identity: Identity, reference: Reference) -> ShownDataView:
        """The beginning of a payload: its rows, or its value."""
        port = await self._results.open_results(identity, reference)
        preview = await port.preview(reference, PREVIEW_ROWS)
        value = preview.value if preview.rows is None else preview.rows
        shown, is_cut = cut_value(value)
        return ShownDataView(shown, describe_reference(reference), preview.cut or is_cut)

    async def _find_stored_input(self, identity: Identity, uri: str) -> Reference | None:
        """The payload at this address, unless it is gone. Its id follows from its address."""
        traced = await self._lineage.trace_references(
            identity.tenant,
            [derive_ref_id(uri)],
            0,
            None,
            1,
        )
        for each in traced:
            if each.reference.uri == uri and each.expired_at is None:
                return each.reference
        return None

    async def _find_reference(
        self,
        identity: Identity,
        loaded: LoadedState,
        ref_id: str,
    ) -> tuple[Reference, str | None]:
        """The reference of this id and, if its data is gone, since when."""
        for record in loaded.state.steps.values():
            result = record.result
            if result is not None and result.reference is not None:
                if result.reference.ref_id == ref_id and not ref_id.isdecimal():
                    return result.reference, None
        if ref_id.isascii() and ref_id.isdecimal() and 0 < int(ref_id) <= MAX_REF_ID:
            traced = await self._lineage.trace_references(
                identity.tenant,
                [RefId(ref_id)],
                0,
                None,
                1,
            )
            for each in traced:
                expired_at = None if each.expired_at is None else format_iso(each.expired_at)
                return each.reference, expired_at
        raise NotFound(f"no payload has the id {ref_id}", hint="`reference` of a result has its id")


def _make_filter(
    run: StepRun,
    status: ItemStatus,
    kind: int | None,
    q: str | None,
) -> Matches:
    wanted = ROW_STATUSES.get(status)
    text = (q or "").strip().lower()
    of_kind = None
    if kind is not None:
        if kind >= len(run.kinds):
            raise InvalidInput(
                f"the loop has {len(run.kinds)} kinds of failures, and not this one",
                hint="ask for its items without a kind: the answer lists the kinds",
            )
        of_kind = run.kinds[kind]

    def matches(row: dict[str, Any]) -> bool:
        if wanted is not None and row["status"] != wanted:
            return False
        if of_kind is not None and not is_of_kind(row, of_kind.code, of_kind.shape):
            return False
        return not text or has_text(row, text)

    return matches


def _make_item_view(
    found: FoundRow,
    items: dict[int, Any],
    workers: dict[CommandId, str],
    children: dict[CommandId, list[ExecutionId]],
) -> ItemView:
    row = found.row
    command = find_command_id(found)
    return ItemView(
        index=row["index"],
        item=cut_value(items.get(row["index"]))[0],
        status=row["status"],
        ms=row.get("ms"),
        tries=row.get("tries"),
        error=make_item_error(row.get("error")),
        value=cut_value(row.get("result"))[0],
        command_id=command,
        worker=None if command is None else workers.get(command),
        children=[] if command is None else [*children.get(command, ())],
    )


def _is_cut(value: Any) -> bool:
    return isinstance(value, dict) and value.get("cut") is True

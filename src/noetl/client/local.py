"""The client of the home of this machine. It calls the services in this process."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct, to_builtins

from noetl.audit.port import MAX_CHAIN_ENTRIES, AuditFilter
from noetl.backoff import Backoff
from noetl.client.rows import (
    ExecutionChange,
    PinChange,
    RepeatKind,
    Row,
    RowSpan,
    ScheduleChange,
    UserAbility,
    collect_list_pages,
    join_trace_pages,
)
from noetl.log.events.port import RecordedEvent
from noetl.log.projections.port import Projection
from noetl.model.errors import NotFound, OutcomeUnknown
from noetl.model.identity import LOCAL_IDENTITY
from noetl.model.ids import ExecutionId
from noetl.model.messages import RetryChoice
from noetl.model.reference import Reference
from noetl.runtime import LocalNeed
from noetl.runtime.local import LocalSite, open_local_site
from noetl.runtime.local_services import LocalServices
from noetl.server.dispatch.requests import RepeatWish
from noetl.server.executions.filters import make_execution_filter
from noetl.server.executions.request_outcomes import make_request_key
from noetl.server.logs.lines import read_printed_lines
from noetl.server.signals.service import OutsideSignal
from noetl.triggers.port import HookDefinition

MIN_LOG_POLL_S = 0.01  # shortest and longest seconds between two reads of the log
MAX_LOG_POLL_S = 0.1
MAX_PAGE_EVENTS = 5_000  # events
MAX_LISTED_ROWS = 100_000  # rows of a list that is not paged
MAX_LISTED_COMMANDS = 500


@asynccontextmanager
async def open_local_client(
    home: Path, need: LocalNeed, pools: tuple[str, ...] = ()
) -> AsyncIterator["LocalClient"]:
    async with open_local_site(home, need, pools) as site:
        yield LocalClient(site)


class LocalClient:
    """A client that calls the services in this process."""

    def __init__(self, site: LocalSite) -> None:
        self.has_server = site.has_other_server
        self._ports = site.ports
        self._server = site.server
        self._tasks = site.tasks
        self._poll_backoff = Backoff(MIN_LOG_POLL_S, MAX_LOG_POLL_S, factor=1.5)
        self._services = LocalServices(site.ports, site.server, MAX_LOG_POLL_S)

    # -- playbooks --

    async def register(self, text: str, path: str | None = None) -> Row:
        return to_row(await self._services.catalog.register(LOCAL_IDENTITY, text, path))

    async def list_playbooks(self, prefix: str = "") -> list[Row]:
        page = await self._services.catalog.list_latest(
            LOCAL_IDENTITY, prefix, limit=MAX_LISTED_ROWS
        )
        return to_rows(page.playbooks)

    async def get_playbook(self, path: str, version: int | None = None) -> Row:
        return to_row(await self._services.catalog.get(LOCAL_IDENTITY, path, version))

    async def diff_versions(
        self,
        path: str,
        older: int,
        newer: int | None = None,
    ) -> Row:
        difference = await self._services.catalog.diff_versions(LOCAL_IDENTITY, path, older, newer)
        return to_row(difference)

    # -- credentials --

    async def add_credential(
        self,
        name: str,
        kind: str,
        data: dict[str, Any],
    ) -> Row:
        service = self._services.credentials
        return to_row(await service.add(LOCAL_IDENTITY, name, kind, data))

    async def list_credentials(self) -> list[Row]:
        found = await self._services.credentials.list_all(LOCAL_IDENTITY)
        return to_rows(found.credentials)

    async def rewrap_credentials(self) -> Row:
        return to_row(await self._services.credentials.rewrap(LOCAL_IDENTITY))

    async def delete_credential(self, name: str) -> Row:
        return to_row(await self._services.credentials.delete(LOCAL_IDENTITY, name))

    # -- tokens --

    async def create_token(self, **wanted: Any) -> Row:
        return to_row(await self._services.accounts.create_token(LOCAL_IDENTITY, **wanted))

    async def list_tokens(self, tenant: str | None = None) -> list[Row]:
        found = await self._services.accounts.list_tokens(LOCAL_IDENTITY, tenant)
        return to_rows(found.tokens)

    async def revoke_token(self, token_id: str, tenant: str | None = None) -> Row:
        revoke = self._services.accounts.revoke_token
        return to_row(await revoke(LOCAL_IDENTITY, token_id, tenant))

    # -- tenants --

    async def create_tenant(self, name: str) -> Row:
        return to_row(await self._services.tenants.create(LOCAL_IDENTITY, name))

    async def list_tenants(self) -> list[Row]:
        return to_rows((await self._services.tenants.list_all(LOCAL_IDENTITY)).tenants)

    async def get_tenant(self, name: str) -> Row:
        return to_row(await self._services.tenants.get(LOCAL_IDENTITY, name))

    async def set_tenant_quotas(self, name: str, quotas: Row) -> Row:
        limits = (quotas["running"], quotas["queued"], quotas["bytes"])
        return to_row(await self._services.tenants.set_quotas(LOCAL_IDENTITY, name, *limits))

    # -- users --

    async def create_user(self, **wanted: Any) -> Row:
        return to_row(await self._services.users.create_user(LOCAL_IDENTITY, **wanted))

    async def list_users(self) -> list[Row]:
        return to_rows((await self._services.users.list_users(LOCAL_IDENTITY)).users)

    async def change_user(self, user: str, how: UserAbility) -> Row:
        users = self._services.users
        change = users.disable_user if how == "disable" else users.enable_user
        return to_row(await change(LOCAL_IDENTITY, user))

    async def set_user_password(self, user: str, password: str) -> Row:
        return to_row(await self._services.users.set_password(LOCAL_IDENTITY, user, password))

    async def set_user_roles(self, user: str, roles: list[str]) -> Row:
        return to_row(await self._services.users.set_roles(LOCAL_IDENTITY, user, roles))

    # -- the audit trail --

    async def list_audit(self, *, before: int | None, limit: int, **wanted: Any) -> list[Row]:
        chosen = AuditFilter(**wanted)
        page = await self._services.audit.list_page(LOCAL_IDENTITY, chosen, before, limit)
        return to_rows(page.entries)

    async def read_audit_chain(self, after: int) -> Row:
        chain = await self._services.audit.read_chain(LOCAL_IDENTITY, after, MAX_CHAIN_ENTRIES)
        return to_row(chain)

    # -- state between executions --

    async def list_state_values(self, path: str | None) -> list[Row]:
        if path is None:
            page = await self._services.playbook_state.list_page(
                LOCAL_IDENTITY, limit=MAX_LISTED_ROWS
            )
            return to_rows(page.state)
        found = await self._services.playbook_state.list_state_values(LOCAL_IDENTITY, path)
        return to_rows(found.state)

    async def get_state_value(self, path: str, name: str) -> Row:
        return to_row(await self._services.playbook_state.get(LOCAL_IDENTITY, path, name))

    async def set_state(
        self,
        path: str,
        name: str,
        value: Any,
        expected: int | None,
    ) -> Row:
        return to_row(
            await self._services.playbook_state.put(LOCAL_IDENTITY, path, name, value, expected)
        )

    async def unset_state(self, path: str, name: str, expected: int | None) -> Row:
        return to_row(
            await self._services.playbook_state.unset(LOCAL_IDENTITY, path, name, expected)
        )

    async def list_state_history(self, path: str, name: str) -> list[Row]:
        history = await self._services.playbook_state.read_history(LOCAL_IDENTITY, path, name)
        return to_rows(history.versions)

    # -- what starts executions --

    async def add_schedule(self, **wanted: Any) -> Row:
        return to_row(await self._services.schedules.add(LOCAL_IDENTITY, **wanted))

    async def list_schedules(self) -> list[Row]:
        page = await self._services.schedules.list_page(LOCAL_IDENTITY, limit=MAX_LISTED_ROWS)
        return to_rows(page.schedules)

    async def get_schedule(self, name: str) -> Row:
        return to_row(await self._services.schedules.get(LOCAL_IDENTITY, name))

    async def change_schedule(self, name: str, how: ScheduleChange) -> Row:
        if how == "pause":
            return to_row(await self._services.schedules.pause(LOCAL_IDENTITY, name))
        return to_row(await self._services.schedules.resume(LOCAL_IDENTITY, name))

    async def delete_schedule(self, name: str) -> Row:
        return to_row(await self._services.schedules.delete(LOCAL_IDENTITY, name))

    async def list_next_slots(self, name: str, count: int) -> Row:
        return to_row(await self._services.schedules.list_upcoming(LOCAL_IDENTITY, name, count))

    async def add_hook(self, **call: Any) -> Row:
        definition = HookDefinition(tenant=LOCAL_IDENTITY.tenant, **call)
        return to_row(await self._services.hooks.add(LOCAL_IDENTITY, definition))

    async def list_hooks(self) -> list[Row]:
        page = await self._services.hooks.list_page(LOCAL_IDENTITY, limit=MAX_LISTED_ROWS)
        return to_rows(page.hooks)

    async def delete_hook(self, name: str) -> Row:
        return to_row(await self._services.hooks.delete(LOCAL_IDENTITY, name))

    # -- executions --

    async def start(
        self,
        path: str,
        version: int | None,
        payload: dict[str, Any],
        key: str | None = None,
    ) -> ExecutionId:
        start = partial(
            self._services.executions.start,
            LOCAL_IDENTITY,
            path=path,
            version=version,
            payload=payload,
            key=make_request_key(key),
        )
        try:
            started = await start()
        except OutcomeUnknown:  # the database has ended meanwhile; the key starts nothing twice
            started = await start()
        return started.execution_id

    async def repeat_execution(
        self, execution_id: ExecutionId, how: RepeatKind, **wish: Any
    ) -> ExecutionId:
        repeat = await self._make_repeat_wish(execution_id, how, wish)
        started = await self._services.executions.repeat(LOCAL_IDENTITY, execution_id, repeat)
        return started.execution_id

    async def _make_repeat_wish(
        self, execution_id: ExecutionId, how: RepeatKind, wish: Row
    ) -> RepeatWish:
        """The wish as the services take it. Raises `Conflict` if a chosen item has not failed."""
        wish = dict(wish)
        steps, items = wish.pop("steps", ()), wish.pop("items", {})
        if not steps and not items:
            return RepeatWish(how, **wish)
        chosen = {step: tuple(indexes) for step, indexes in items.items()}
        only = RetryChoice(tuple(steps), chosen)
        await self._services.items.check_chosen_items(LOCAL_IDENTITY, execution_id, only)
        return RepeatWish(how, only=only, **wish)

    async def preview_repeat(self, execution_id: ExecutionId, how: RepeatKind, **wish: Any) -> Row:
        repeat = await self._make_repeat_wish(execution_id, how, wish)
        preview = await self._services.executions.preview(LOCAL_IDENTITY, execution_id, repeat)
        return to_row(preview)

    async def change_execution(self, execution_id: ExecutionId, how: ExecutionChange) -> Row:
        executions = self._services.executions
        request = {
            "cancel": executions.cancel,
            "pause": executions.pause,
            "resume": executions.resume,
            "release": executions.release,
        }[how]
        answer = await request(LOCAL_IDENTITY, execution_id)
        return to_row(answer)

    async def send_signal(self, execution_id: ExecutionId, name: str, payload: Any) -> Row:
        signal = OutsideSignal(name, payload)
        return to_row(await self._services.signals.send(LOCAL_IDENTITY, execution_id, signal))

    async def list_executions(
        self, *, before: str | None = None, limit: int = 50, **filters: Any
    ) -> list[Row]:
        wanted = make_execution_filter(self._ports.clock.now(), **filters)

        async def read_page(start: str | None, missing: int) -> tuple[list[Row], str | None]:
            older = None if start is None else ExecutionId(start)
            page = await self._services.executions.list_page(LOCAL_IDENTITY, wanted, older, missing)
            return to_rows(page.executions), page.next

        return await collect_list_pages(read_page, before, limit)

    async def get_execution(self, execution_id: ExecutionId, min_seq: int | None = None) -> Row:
        with _hint_at_execution_list(execution_id):
            detail = await self._services.executions.get_detail(
                LOCAL_IDENTITY, execution_id, min_seq
            )
            return to_row(detail)

    async def get_status(self, execution_id: ExecutionId, wait: int = 0) -> Row:
        self._raise_task_errors()
        self._raise_write_error()
        with _hint_at_execution_list(execution_id):
            status = await self._services.executions.get_status(LOCAL_IDENTITY, execution_id)
            return to_row(status)

    async def get_workload(self, execution_id: ExecutionId) -> Row:
        return await self._services.executions.read_workload(LOCAL_IDENTITY, execution_id)

    async def get_cause(self, execution_id: ExecutionId, min_seq: int) -> Row | None:
        cause = await self._services.executions.find_cause(LOCAL_IDENTITY, execution_id)
        if cause is None:
            return None
        return to_row(cause)

    async def list_items(self, execution_id: ExecutionId, step: str, **wanted: Any) -> Row:
        page = await self._services.items.list_items(LOCAL_IDENTITY, execution_id, step, **wanted)
        return to_row(page)

    async def explain_step(
        self, execution_id: ExecutionId, step: str, at: int | None = None, run: int | None = None
    ) -> Row:
        told = await self._services.inspection.explain(LOCAL_IDENTITY, execution_id, step, at, run)
        return to_row(told)

    async def get_page(self, execution_id: ExecutionId, at: int | None = None) -> Row:
        return to_row(await self._services.inspection.get_page(LOCAL_IDENTITY, execution_id, at))

    async def find_event(self, execution_id: ExecutionId, number: int) -> int:
        return await self._services.inspection.find_event(LOCAL_IDENTITY, execution_id, number)

    async def list_events(self, execution_id: ExecutionId, after: int = 0) -> list[RecordedEvent]:
        if after == 0:
            await self._get_row(execution_id)
        return await self._ports.stores.log.read_events(execution_id, after, MAX_PAGE_EVENTS)

    async def wait_for_events(self, execution_id: ExecutionId, after: int) -> list[RecordedEvent]:
        """Waits before each read, longer while nothing happens, so that reading does not slow work.

        Raises the last write error of the server: without it a caller would wait for ever.
        """
        self._raise_task_errors()
        await asyncio.sleep(self._poll_backoff.delay)
        events = await self._ports.stores.log.read_events(execution_id, after, MAX_PAGE_EVENTS)
        if events:
            self._poll_backoff.reset()
            return events
        self._raise_write_error()
        self._poll_backoff.count_failure()
        return events

    def _raise_task_errors(self) -> None:
        """Raise the error of a server or worker in this process that has failed."""
        for task in self._tasks:
            if task.done():
                task.result()

    def _raise_write_error(self) -> None:
        trouble = self._server.dispatcher.get_write_error()
        if trouble is not None:
            raise trouble

    def stream_logs(
        self, execution_id: ExecutionId, step: str | None = None, *, follow: bool = False
    ) -> AsyncGenerator[list[Row], None]:
        return read_printed_lines(self._services.logs, execution_id, step, follow=follow)

    async def resolve(self, reference: Reference) -> Any:
        return await self._services.stored_results.resolve(reference)

    async def preview_result(self, execution_id: ExecutionId, step: str, rows: int) -> Row:
        result = await self._services.results.preview_result(
            LOCAL_IDENTITY, execution_id, step, rows
        )
        return to_row(result)

    async def download_result(
        self,
        execution_id: ExecutionId,
        step: str,
        format: str | None,
        rows: RowSpan = (0, None),
    ) -> AsyncGenerator[bytes, None]:
        download = await self._services.results.download(
            LOCAL_IDENTITY,
            execution_id,
            step,
            format,
            *rows,
        )
        async with aclosing(download.parts(0, None)) as parts:
            async for part in parts:
                yield part

    async def trace_result(self, execution_id: ExecutionId, step: str, depth: int) -> Row:
        service = self._services.lineage

        async def read_page(after: str | None) -> Row:
            return to_row(await service.trace(LOCAL_IDENTITY, execution_id, step, depth, after))

        return await join_trace_pages(read_page)

    async def change_pin(self, execution_id: ExecutionId, step: str, how: PinChange) -> Row:
        if how == "pin":
            return to_row(await self._services.results.pin(LOCAL_IDENTITY, execution_id, step))
        return to_row(await self._services.results.unpin(LOCAL_IDENTITY, execution_id, step))

    async def get_execution_usage(self, execution_id: ExecutionId) -> Row:
        return to_row(await self._services.usage.get_usage(LOCAL_IDENTITY, execution_id))

    async def list_usage(
        self,
        path: str | None,
        before: str | None,
        limit: int,
    ) -> Row:
        older = None if before is None else ExecutionId(before)
        return to_row(await self._services.usage.list_page(LOCAL_IDENTITY, path, older, limit))

    # -- the queue --

    async def list_queue(
        self, status: str | None = None, execution_id: ExecutionId | None = None
    ) -> list[Row]:
        page = await self._services.queue.list_commands(
            LOCAL_IDENTITY, status=status, execution_id=execution_id, limit=MAX_LISTED_COMMANDS
        )
        return to_rows(page.commands)

    async def check_history_readable(self) -> str:
        # Loads the library of metrics, which only `noetl doctor` needs.
        from noetl.server.health.service import check_history

        return await check_history(self._ports.stores.log)

    async def has_running_server(self) -> bool:
        return await self._ports.leases.count_servers() > 0

    async def list_workers(self) -> list[Row]:
        return to_rows(await self._services.queue.list_workers(LOCAL_IDENTITY))

    async def read_projection_lag(self) -> dict[int, float]:
        stores = self._ports.stores
        lag_ms: dict[int, float] = {}
        for shard in range(self._ports.shards):
            checkpoint = await stores.projections.read_checkpoint(shard)
            waiting = await stores.log.follow_shard(shard, checkpoint, 1)
            if waiting:
                age = self._ports.clock.now() - waiting[0].event.at
                lag_ms[shard] = max(0, age) / 1000
        return lag_ms

    async def _get_row(self, execution_id: ExecutionId, min_seq: int | None = None) -> Projection:
        with _hint_at_execution_list(execution_id):
            return await self._services.executions.get_row(LOCAL_IDENTITY, execution_id, min_seq)


def to_row(view: Struct) -> Row:
    """The struct of an answer as the JSON object that the HTTP API has for it."""
    row: Row = to_builtins(view)
    return row


def to_rows(views: Sequence[Struct]) -> list[Row]:
    return [to_row(view) for view in views]


@contextmanager
def _hint_at_execution_list(execution_id: ExecutionId) -> Iterator[None]:
    try:
        yield
    except NotFound as error:
        raise NotFound(
            f"no execution {execution_id}", hint="noetl exec list shows those there are"
        ) from error

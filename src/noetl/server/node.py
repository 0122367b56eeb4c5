"""Wires one server from its ports. `Server.run` runs it until it is cancelled."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from hashlib import sha256
from typing import Any

from msgspec.structs import replace

from noetl.bus import port as bus_port
from noetl.bus.port import Bus
from noetl.catalog.port import Catalog
from noetl.leases.port import Leases
from noetl.log.stores import Stores
from noetl.model.clock import Clock
from noetl.model.decisions import AddPart
from noetl.model.errors import InvalidInput, NotFound, Unavailable
from noetl.model.exchange import ExchangeReply, ExchangeRequest
from noetl.model.identity import WORKER_IDENTITY, Identity
from noetl.model.ids import DEFAULT_TENANT, ExecutionId, RefId, Tenant
from noetl.model.messages import StoredRef
from noetl.model.reference import Reference, parse_uri
from noetl.server.audit.refusals import RefusedCalls
from noetl.server.clock import StoreClock
from noetl.server.dispatch.children import Children
from noetl.server.dispatch.dispatcher import Dispatcher
from noetl.server.dispatch.playbooks import Playbooks
from noetl.server.dispatch.requests import Requests
from noetl.server.dispatch.shards import OwnedShards, ShardKeeper
from noetl.server.dispatch.states import States
from noetl.server.duties.inbox import InboxDrain
from noetl.server.duties.jobs import LakeJobDuty, Run
from noetl.server.duties.loop import DutyLoop, listen_to_hints
from noetl.server.duties.lost_workers import LostWorkers, WorkerLiveness
from noetl.server.duties.projector import Projector
from noetl.server.duties.reaper import Reaper
from noetl.server.duties.schedules import Scheduler
from noetl.server.duties.snapshots import SnapshotWriter
from noetl.server.duties.sweeper import Sweeper
from noetl.server.duties.timers import Timers
from noetl.server.executions.rows import RowCache
from noetl.server.inspection.folds import ExecutionFolds
from noetl.server.logs.step_logs import StepLogWriter
from noetl.server.observer import CommitObserver, NoObserver
from noetl.server.results.expiry import check_not_expired
from noetl.server.settings import ServerSettings
from noetl.server.tenants.quotas import QuotaGuard
from noetl.server.workers.exchange import Exchange
from noetl.server.workers.handoff import WaitingWorkers
from noetl.triggers.port import Schedules

log = logging.getLogger(__name__)

SHARD_RELEASE_TIMEOUT_S = 1.0  # seconds to give shards back when the process ends in order
# Seconds before the first run of the reaper. Workers find a restarted server within this time and
# renew their leases, which may have run out while no server was there.
REAPER_START_DELAY_S = 2.0
Reveal = Callable[[Identity, str], Awaitable[dict[str, Any]]]  # the fields of a stored credential


# Seconds between two runs of the projector for the rows of ended executions, which people wait for.
ENDED_ROWS_PAUSE_S = 0.04


class Server:
    """One server. Workers call only `exchange`, `fetch_playbook`, `list_manifest_parts`, `payload`,
    `put_payload`, `find_orphans`, `put_logs` and `read_credential`."""

    def __init__(
        self,
        stores: Stores,
        leases: Leases,
        bus: Bus,
        catalog: Catalog,
        clock: Clock,
        settings: ServerSettings,
        *,
        reveal: Reveal | None = None,
        schedules: Schedules | None = None,
        jobs: Mapping[str, Run] | None = None,
        observer: CommitObserver | None = None,
        worker_locks: WorkerLiveness | None = None,
        quotas: QuotaGuard | None = None,
        refused_calls: RefusedCalls | None = None,
    ) -> None:
        """With `schedules`, this server starts their executions. `jobs` over the log run hourly.

        The `observer` is told of everything that this server commits. `worker_locks` show which
        workers of this machine are gone. `quotas` refuses starts. `refused_calls` are written to the
        audit trail.
        """
        observer = observer or NoObserver()
        self._log = stores.log
        self._payloads = stores.payloads
        self._lifetimes = stores.lifetimes
        self._bus = bus
        self._reveal = reveal
        self.settings = settings
        self.shards = OwnedShards(settings.shards)
        self.clock = StoreClock(clock)
        self.keeper = ShardKeeper(leases, self.shards, self.clock, settings)
        self.playbooks = Playbooks(catalog, settings.plans, settings.env)
        self.rows = RowCache(stores.projections, self.shards, settings.rows)
        self.states = States(stores.log, self.rows, self.playbooks, settings.states)
        self.folds = ExecutionFolds(stores.log, stores.snapshots, settings.time_slice_s)
        self._step_logs = StepLogWriter(stores.step_logs, observer)
        waiting = WaitingWorkers()
        self.dispatcher = self._make_dispatcher(stores, bus, waiting, observer)
        self.requests = Requests(
            stores.log,
            stores.inbox,
            bus,
            self.playbooks,
            self.states,
            self.keeper.new_id,
            settings.shards,
            quotas,
        )
        self._exchange = Exchange(
            stores.inbox,
            stores.queue,
            bus,
            self.dispatcher,
            self.shards,
            waiting,
            self._step_logs,
            lease=settings.lease,
            poll=settings.poll_interval,
        )
        self.projector = self._make_projector(stores, observer)
        self.dispatcher.on_append.append(self.projector.mark_changed)
        self.inbox = InboxDrain(stores.inbox, self.dispatcher, self.shards, settings.read_limit)
        self.timers = Timers(
            stores.inbox, self.dispatcher, self.shards, self.clock, settings.read_limit
        )
        self.dispatcher.on_append.append(self.timers.mark_changed)
        self.reaper = Reaper(stores.queue, bus, settings.shards, settings.read_limit)
        self.lost_workers: LostWorkers | None = None
        if worker_locks is not None:
            self.lost_workers = LostWorkers(worker_locks, stores.queue, bus, settings.shards)
            self.dispatcher.on_append.append(self.lost_workers.mark_changed)
        self.snapshots = SnapshotWriter(self.states, self.folds, self.dispatcher.is_idle)
        self.sweeper = Sweeper(
            stores.lifetimes,
            stores.snapshots,
            settings.grace,
            settings.retention,
            settings.snapshot_age,
        )
        self.jobs: list[LakeJobDuty] = []
        for name, run in (jobs or {}).items():
            self.jobs.append(LakeJobDuty(name, run, leases, self.keeper))
        self.refused_calls = refused_calls
        self.scheduler: Scheduler | None = None
        if schedules is not None:
            self.scheduler = Scheduler(schedules, self.requests, settings.read_limit)

    def _make_dispatcher(
        self, stores: Stores, bus: Bus, waiting: WaitingWorkers, observer: CommitObserver
    ) -> Dispatcher:
        return Dispatcher(
            stores.log,
            stores.inbox,
            stores.state,
            bus,
            self.clock,
            self.shards,
            self.states,
            Children(self.playbooks, self.keeper.new_id, stores.payloads.read_payload),
            waiting,
            observer,
            lease=self.settings.lease,
            time_slice_s=self.settings.time_slice_s,
        )

    def _make_projector(self, stores: Stores, observer: CommitObserver) -> Projector:
        return Projector(
            stores.log,
            stores.projections,
            self.states,
            self.shards,
            self.rows,
            observer,
            limit=10 * self.settings.read_limit,
            time_slice_s=self.settings.time_slice_s,
            row_interval=self.settings.row_interval,
        )

    async def run(self) -> None:
        settings = self.settings
        inbox = DutyLoop(self.inbox, settings.inbox_interval)
        timers = DutyLoop(self.timers, settings.timer_interval)
        projector = DutyLoop(self.projector, settings.projector_interval)
        self.dispatcher.on_end = partial(projector.wake_soon, ENDED_ROWS_PAUSE_S)
        loops = [
            DutyLoop(self.keeper, settings.shard_interval, slowest=settings.renew_every / 2),
            inbox,
            timers,
            DutyLoop(
                self.reaper,
                settings.reaper_interval,
                after=min(settings.lease / 1e6, REAPER_START_DELAY_S),
            ),
            projector,
            DutyLoop(self.snapshots, settings.snapshot_interval, after=settings.snapshot_interval),
        ]
        if self.lost_workers is not None:
            loops.append(DutyLoop(self.lost_workers, settings.lost_worker_interval))
        if self.scheduler is not None:
            loops.append(DutyLoop(self.scheduler, settings.schedule_interval))
        if self.refused_calls is not None:
            loops.append(DutyLoop(self.refused_calls, settings.refused_calls_interval))
        loops += [
            DutyLoop(job, settings.job_interval, slowest=settings.job_interval) for job in self.jobs
        ]

        def wake_readers(shard: int) -> None:  # a new shard may have unread rows
            inbox.wake.set()
            timers.wake.set()

        self.shards.on_change.append(wake_readers)
        subjects = [bus_port.make_inbox_subject(shard) for shard in range(settings.shards)]
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.dispatcher.run())
                group.create_task(self._exchange.run())
                group.create_task(listen_to_hints(self._bus, subjects, inbox.wake.set))
                for loop in loops:
                    group.create_task(loop.run())
                if settings.sweep_interval is not None:
                    sweeps = DutyLoop(self.sweeper, settings.sweep_interval)
                    group.create_task(_run_later(settings.sweep_interval, sweeps))
        finally:
            self.shards.on_change.remove(wake_readers)
            with suppress(Unavailable, TimeoutError):
                async with asyncio.timeout(SHARD_RELEASE_TIMEOUT_S):
                    await self.keeper.close()
                    if self.refused_calls is not None:
                        await self.refused_calls.run_once()

    # -- the worker's channel --

    # A worker belongs to a tenant, and for it the executions of others do not exist. Without a tenant,
    # the worker runs in the process of this server.

    async def exchange(
        self, request: ExchangeRequest, tenant: Tenant = DEFAULT_TENANT
    ) -> ExchangeReply:
        return await self._exchange.exchange(tenant, request)

    async def fetch_playbook(self, content: str, tenant: Tenant = DEFAULT_TENANT) -> str:
        """The text of the playbook with this content hash."""
        entry = await self.playbooks.get_catalog_entry(content, tenant)
        return entry.text

    async def list_manifest_parts(
        self, manifest: str, tenant: Tenant = DEFAULT_TENANT
    ) -> list[AddPart]:
        return await self._log.read_manifest(tenant, manifest)

    async def payload(
        self, ref_id: RefId, uri: str, tenant: Tenant = DEFAULT_TENANT
    ) -> bytes | None:
        """A small payload from the database; None if it is not there. Raises `Expired`."""
        owner = parse_uri(uri).execution_id
        payload = await self._payloads.read_payload(tenant, ref_id, uri)
        if payload is None and await self._log.find_tenant(owner) == tenant:
            await check_not_expired(self._lifetimes, {ref_id: uri})
        return payload

    async def put_payload(
        self, reference: Reference, payload: bytes, tenant: Tenant = DEFAULT_TENANT
    ) -> None:
        parse_uri(reference.uri)
        if reference.sha256 != sha256(payload).hexdigest():
            raise InvalidInput(
                f"{reference.uri}: the payload does not match its checksum", hint="send it again"
            )
        await self._payloads.put_payload(tenant, reference, payload)

    async def find_orphans(
        self, execution_id: ExecutionId, uris: list[str], tenant: Tenant = DEFAULT_TENANT
    ) -> list[str]:
        """Those of these addresses that the ended execution does not name and never will."""
        if any(parse_uri(uri).execution_id != execution_id for uri in uris):
            raise InvalidInput(f"not every address is one of execution {execution_id}")
        return await self._payloads.find_orphans(tenant, execution_id, uris)

    async def read_credential(self, name: str, tenant: Tenant = DEFAULT_TENANT) -> dict[str, Any]:
        if self._reveal is None:
            raise NotFound(f"there is no credential {name!r}")
        return await self._reveal(replace(WORKER_IDENTITY, tenant=tenant), name)

    async def put_logs(self, parts: tuple[StoredRef, ...], tenant: Tenant = DEFAULT_TENANT) -> None:
        await self._step_logs.store_parts(tenant, parts)


async def _run_later(seconds: float, loop: DutyLoop) -> None:
    """Delay the first run by a whole interval, so that a short-lived process never sweeps."""
    await asyncio.sleep(seconds)
    await loop.run()

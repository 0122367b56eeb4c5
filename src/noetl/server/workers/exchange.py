"""The worker protocol: reports up, commands and cancellations down, long polls in between.

Reports come first. A report of an execution in this server's shards goes to the dispatcher; any
other goes into the inbox of the execution. The server sends a command again, with the same attempt,
if it is leased to this process of the worker and the worker does not list it: the reply that
carried it may be lost. So a worker may get a command it already has, and recognises it by its
attempt.

A *holder* is one process (life) of a worker; leases belong to it.
"""

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress
from functools import partial

from noetl.bus import port as bus_port
from noetl.bus.port import Bus
from noetl.caches import LruCache
from noetl.faults import hit_fault_point
from noetl.log.inbox.port import Inbox
from noetl.log.queue.port import CommandQueue, Renewal
from noetl.model.commands import Command
from noetl.model.errors import BadReference, OutcomeUnknown, Unavailable
from noetl.model.exchange import MAX_PROGRESS_CHARS, Ack, ExchangeReply, ExchangeRequest, LeaseKey
from noetl.model.ids import Micros, Tenant
from noetl.model.messages import Report, StoredRef
from noetl.model.reference import parse_uri
from noetl.server.dispatch.dispatcher import Dispatcher
from noetl.server.dispatch.execution_batch import Answer
from noetl.server.dispatch.shards import OwnedShards
from noetl.server.duties.loop import listen_to_hints
from noetl.server.logs.step_logs import StepLogWriter
from noetl.server.workers.handoff import Holder, TenantPool, WaitingRequest, WaitingWorkers

log = logging.getLogger(__name__)

MAX_KNOWN_PROCESSES = 5  # remembered processes of each worker
MAX_REMEMBERED_HOLDERS = 1_000  # holders for which the last replies are remembered
FOREIGN_REFERENCE = "FOREIGN_REFERENCE"
LOGS_TIMEOUT_S = 1.0  # seconds that reports wait for step logs to be stored


class Exchange:
    """Answers the exchanges of workers."""

    def __init__(
        self,
        inbox: Inbox,
        queue: CommandQueue,
        bus: Bus,
        dispatcher: Dispatcher,
        shards: OwnedShards,
        waiting: WaitingWorkers,
        step_logs: StepLogWriter,
        *,
        lease: Micros,
        poll: float,
    ) -> None:
        self._inbox = inbox
        self._queue = queue
        self._bus = bus
        self._dispatcher = dispatcher
        self._shards = shards
        self._waiting = waiting
        self._step_logs = step_logs
        self._lease = lease
        self._poll = poll
        # by tenant and worker
        self._known_processes: dict[tuple[Tenant, str], list[str]] = {}
        # by holder: commands that were sent to it and that it has not listed or reported since
        self._sent: LruCache[Holder, set[LeaseKey]] = LruCache(MAX_REMEMBERED_HOLDERS)
        self._pools: set[TenantPool] = set()
        self._new_pool = asyncio.Event()

    async def run(self) -> None:
        """Listen to hints for every pool that a worker of this server has named."""
        async with asyncio.TaskGroup() as group:
            listened: set[TenantPool] = set()
            while True:
                for pool in sorted(self._pools - listened):
                    listened.add(pool)
                    subjects = [bus_port.make_commands_subject(*pool)]
                    wake_pool = partial(self._waiting.wake_pools, (pool,))
                    group.create_task(listen_to_hints(self._bus, subjects, wake_pool))
                self._new_pool.clear()
                await self._new_pool.wait()

    async def exchange(self, tenant: Tenant, request: ExchangeRequest) -> ExchangeReply:
        """Take reports and step logs, renew leases, and return commands; wait if there are none.

        The worker belongs to the tenant: it reports and gets only commands of its executions.
        """
        holder = Holder(tenant, request.holder)
        pools = tuple(TenantPool(tenant, pool) for pool in request.pools)
        self._register_pools(pools)
        # The worker waits from here on: a command that its own reports lead to can be handed to it
        # in the transaction that records them.
        waiter = self._waiting.add_request(
            holder, pools, request.free, reports=bool(request.reports)
        )
        must_look = self._must_read_leases(holder, request)
        reply = None
        try:
            reply = await self._make_exchange_reply(waiter, request, must_look)
            return reply
        finally:
            self._waiting.remove_request(waiter)
            self._remember_sent(waiter, reply)

    async def _make_exchange_reply(
        self, waiter: WaitingRequest, request: ExchangeRequest, must_look: bool
    ) -> ExchangeReply:
        tenant = waiter.worker.tenant
        logged = await self._store_logs(tenant, request.logs)
        acks = await self._record_reports(tenant, request.reports)
        if acks:
            hit_fault_point("report.after")
        await self._release_earlier_process(waiter.worker, request, acks)
        renewal: Renewal | None = Renewal()
        leased: list[Command] = []
        if must_look:
            renewal, leased = await self._renew_leases(waiter.worker, request)
        if renewal is None:
            given = tuple(waiter.given_commands)
            return ExchangeReply(
                acks=acks, commands=given, renewed=False, logged=logged, tenant=tenant
            )
        sent = [command for command in leased if command not in waiter.given_commands]
        waiter.open_places = max(0, waiter.open_places - len(sent))
        sent += await self._claim_commands(waiter)
        stop = renewal.stop + renewal.lost
        if not (acks or sent or stop):
            sent += await self._wait_for_commands(waiter, request.wait / 1e6)
        commands = _drop_duplicate_commands([*waiter.given_commands, *sent])
        return ExchangeReply(acks=acks, commands=commands, stop=stop, logged=logged, tenant=tenant)

    def _must_read_leases(self, holder: Holder, request: ExchangeRequest) -> bool:
        """Whether to read the worker's leases from the store.

        Yes if the worker asks for it, if it is new here, if it got a lease after its last reply,
        or if it lists nothing of what it was sent: that reply may be lost.
        """
        sent = self._sent.peek(holder)
        if self._waiting.take_owed(holder) or sent is None:
            return True
        reported = [LeaseKey(report.command_id, report.attempt) for report in request.reports]
        sent.difference_update(request.held, reported)
        return request.renew or bool(sent)

    def _remember_sent(self, waiter: WaitingRequest, reply: ExchangeReply | None) -> None:
        """Remember what the worker was sent.

        If it may hold more leases than that, remember nothing: its next exchange reads them.
        """
        if reply is None or not reply.renewed or waiter.is_claim_unsure or waiter.reserved_places:
            self._sent.pop(waiter.worker)
            return
        sent = self._sent.peek(waiter.worker)
        if sent is None:
            sent = set()
        sent.update(map(_make_lease_key, reply.commands))
        self._sent.put(waiter.worker, sent)

    async def _release_earlier_process(
        self, holder: Holder, request: ExchangeRequest, acks: tuple[Ack, ...]
    ) -> None:
        """Release the leases of the process that this one replaces.

        A new process of a worker knows only the finished commands in the spool of the old one.
        Once these reports are recorded, the other commands of the old process are lost at once.
        """
        lives = self._known_processes.setdefault((holder.tenant, request.worker), [])
        if holder.name in lives:  # perhaps a late request of an earlier process
            return
        if lives and _has_unsent_reports(
            request, acks
        ):  # a later exchange does it, or the leases run out
            return
        lives.append(holder.name)
        if len(lives) > 1:
            with suppress(Unavailable):  # the leases run out in that case
                if await self._queue.end_leases(lives[-2], holder.tenant):
                    for shard in range(self._shards.count):
                        await self._bus.publish(bus_port.make_inbox_subject(shard))
        del lives[:-MAX_KNOWN_PROCESSES]

    def _register_pools(self, pools: tuple[TenantPool, ...]) -> None:
        if not self._pools.issuperset(pools):
            self._pools.update(pools)
            self._new_pool.set()

    # -- reports --

    async def _store_logs(self, tenant: Tenant, parts: tuple[StoredRef, ...]) -> bool:
        """Store step logs; False if the worker has to send them again.

        Called before the reports are recorded, so that the lines of an ended step are readable.
        The timeout keeps reports from waiting long.
        """
        if not parts:
            return True
        try:
            async with asyncio.timeout(LOGS_TIMEOUT_S):
                await self._step_logs.store_parts(tenant, parts)
        except (Unavailable, TimeoutError):
            return False
        except Exception:  # a bug here must not keep reports from being recorded
            log.exception("step logs not stored")
        return True

    async def _record_reports(self, tenant: Tenant, reports: tuple[Report, ...]) -> tuple[Ack, ...]:
        """Submit all reports to the dispatcher before awaiting the first: they share a commit."""
        acks: list[Ack] = []
        submitted: list[tuple[Report, asyncio.Future[Answer] | None]] = []
        for report in reports:
            refusal = _refuse_foreign_references(report)
            if refusal is not None:
                acks.append(refusal)
            elif self._shards.owns(self._shards.find_shard(report.execution_id)):
                submitted.append((report, self._dispatcher.submit_report(tenant, report)))
            else:
                submitted.append((report, None))
        for report, answer in submitted:
            status: Answer = "retry"
            if answer is not None:
                status = await answer
            if status == "retry" and not self._shards.owns(
                self._shards.find_shard(report.execution_id)
            ):
                status = await self._accept_report(tenant, report)
            acks.append(Ack(report.command_id, report.key, status, attempt=report.attempt))
        return tuple(acks)

    async def _accept_report(self, tenant: Tenant, report: Report) -> Answer:
        """Write the report into the inbox of its execution, which another server owns."""
        try:
            accepted = await self._inbox.accept_report(tenant, report)
        except Unavailable:
            return "retry"
        await self._bus.publish(
            bus_port.make_inbox_subject(self._shards.find_shard(report.execution_id))
        )
        return "ok" if accepted else "stale"

    # -- commands --

    async def _renew_leases(
        self, holder: Holder, request: ExchangeRequest
    ) -> tuple[Renewal | None, list[Command]]:
        """Renew the worker's leases, and find commands that are leased to it and that it does not
        list; their leases are renewed too. None if the store is unavailable: the acks stay valid.
        """
        reported = {report.command_id for report in request.reports}
        held = tuple(lease for lease in request.held if lease.command_id not in reported)
        listed = set(request.held)
        progress = {item.held: item.said[:MAX_PROGRESS_CHARS] for item in request.progress}
        try:
            leased = await self._queue.list_leased_commands(*holder)
            unlisted = [
                command
                for command in leased
                if command.command_id not in reported and _make_lease_key(command) not in listed
            ]
            wanted = held + tuple(_make_lease_key(command) for command in unlisted)
            renewal = Renewal()
            if wanted:
                renewal = await self._queue.renew_leases(*holder, wanted, self._lease, progress)
        except Unavailable:
            return None, []
        gone = set(renewal.lost) - listed
        lost = tuple(lease for lease in renewal.lost if lease in listed)
        unknown_to_worker = [
            command for command in unlisted if _make_lease_key(command) not in gone
        ]
        return Renewal(renewal.stop, lost), unknown_to_worker

    async def _claim_commands(self, waiter: WaitingRequest) -> list[Command]:
        """Claim commands for the waiter's open places.

        Skips the claim if the last one found too few and no hint has come since.
        """
        if not waiter.open_places:
            return []
        now = asyncio.get_running_loop().time()
        empty_for = now - self._waiting.empty_since(waiter.pools)
        if empty_for < self._poll * 0.9:
            return []
        # Before the claim, so that a hint during the claim is not lost.
        self._waiting.mark_empty(waiter.pools, now)
        places = waiter.reserve_all()
        claimed = await self._claim_places(waiter, places)
        if claimed is None:
            self._waiting.forget_empty(waiter.pools)
        elif len(claimed) == places:
            self._waiting.wake_pools(waiter.pools)  # there may be more commands, for other workers
        return claimed or []

    async def _claim_places(self, waiter: WaitingRequest, places: int) -> list[Command] | None:
        """Claim up to so many commands; None if the store did not answer."""
        try:
            pools = tuple(pool.pool for pool in waiter.pools)
            claimed = await self._queue.claim_commands(*waiter.worker, pools, places, self._lease)
        except OutcomeUnknown:
            # The next exchange sends what may have been leased, so this one ends soon.
            waiter.is_claim_unsure = True
            return None
        except Unavailable:
            waiter.open_places += places
            return None
        if claimed:
            hit_fault_point("claim.after")
        waiter.open_places += places - len(claimed)
        return claimed

    async def _wait_for_commands(self, waiter: WaitingRequest, seconds: float) -> list[Command]:
        """Wait for a command: until one is handed off, a claim finds one, or the time is over.

        Claims after each hint, and at the poll interval.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while not waiter.given_commands and not waiter.is_claim_unsure:
            left = deadline - loop.time()
            if left <= 0:
                break
            waiter.woken.clear()
            try:
                async with asyncio.timeout(min(left, self._poll)):
                    await waiter.woken.wait()
            except TimeoutError:
                pass
            if waiter.given_commands:
                break
            claimed = await self._claim_commands(waiter)
            if claimed:
                return claimed
        return []


def _has_unsent_reports(request: ExchangeRequest, acks: tuple[Ack, ...]) -> bool:
    """Whether the worker still has reports to send: to be retried, or too many for one exchange."""
    if any(ack.status == "retry" for ack in acks):
        return True
    reported = {(report.command_id, report.attempt) for report in request.reports}
    return any((lease.command_id, lease.attempt) not in reported for lease in request.held)


def _refuse_foreign_references(report: Report) -> Ack | None:
    """A refusal if the report stores payloads under another execution; None if it is valid.

    A report may name references of other executions, such as the result of a child.
    """
    for stored in report.refs:
        uri = stored.reference.uri
        try:
            is_own = parse_uri(uri).execution_id == report.execution_id
        except BadReference:
            is_own = False
        if not is_own:
            reason = f"{uri[:200]} is not a reference of execution {report.execution_id}"
            return Ack(
                report.command_id, report.key, "refused", reason, report.attempt, FOREIGN_REFERENCE
            )
    return None


def _make_lease_key(command: Command) -> LeaseKey:
    return LeaseKey(command.command_id, command.attempt)


def _drop_duplicate_commands(commands: Iterable[Command]) -> tuple[Command, ...]:
    by_lease = {(command.command_id, command.attempt): command for command in commands}
    return tuple(by_lease.values())

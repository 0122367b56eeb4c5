"""The worker protocol: reports up, commands and cancellations down, a long poll when there is nothing to say.

Reports come first. A report for an execution of this server's shards goes to the dispatcher, any other is accepted into the
inbox of its owner. What is leased to this life of the worker and not listed by it is sent again as the same attempt: whatever
reply was lost, the next one makes up for it. So a worker may be sent a command it already has; it knows it by its attempt.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress
from functools import partial

from noetl.bus import port as bus_port
from noetl.bus.port import Bus
from noetl.faults import fault
from noetl.log.port import EventLog, Renewal
from noetl.model.commands import Command
from noetl.model.errors import BadReference, OutcomeUnknown, Unavailable
from noetl.model.exchange import PROGRESS, Ack, ExchangeReply, ExchangeRequest, LeaseKey
from noetl.model.ids import Micros
from noetl.model.messages import Report, StoredRef
from noetl.model.reference import parse_uri
from noetl.server import steplogs
from noetl.server.dispatch import Dispatcher
from noetl.server.duties.loop import listen
from noetl.server.shards import OwnedShards
from noetl.server.waiting import Waiter, Waiting
from noetl.server.work import Answer

log = logging.getLogger(__name__)

KEPT_LIVES = 5  # of each worker
KEPT_HOLDERS = 1_000  # whose last replies are remembered
FOREIGN = "FOREIGN_REFERENCE"
LOGS_PATIENCE = 1.0  # seconds


class Exchange:
    def __init__(
        self,
        log: EventLog,
        bus: Bus,
        dispatcher: Dispatcher,
        shards: OwnedShards,
        waiting: Waiting,
        *,
        lease: Micros,
        poll: float,
    ) -> None:
        self._log = log
        self._bus = bus
        self._dispatcher = dispatcher
        self._shards = shards
        self._waiting = waiting
        self._lease = lease
        self._poll = poll
        self._lives: dict[str, list[str]] = {}
        self._sent: OrderedDict[str, set[LeaseKey]] = (
            OrderedDict()
        )  # to each holder, and not heard of since
        self._pools: set[str] = set()
        self._new_pool = asyncio.Event()

    async def run(self) -> None:
        """Listen to hints for every pool that a worker of this server has named."""
        async with asyncio.TaskGroup() as group:
            listened: set[str] = set()
            while True:
                for pool in sorted(self._pools - listened):
                    listened.add(pool)
                    group.create_task(
                        listen(
                            self._bus,
                            [bus_port.commands(pool)],
                            partial(self._waiting.wake, (pool,)),
                        )
                    )
                self._new_pool.clear()
                await self._new_pool.wait()

    async def exchange(self, request: ExchangeRequest) -> ExchangeReply:
        holder = request.holder
        self._name_pools(request.pools)
        # It waits from here on: what its own reports lead to can be handed to it in the transaction that records them.
        waiter, reply = self._waiting.enter(holder, request.pools, request.free), None
        look = self._must_look(request)
        try:
            logged = await self._keep_logs(request.logs)
            acks = await self._record(request.reports)
            if acks:
                fault("report.after")
            await self._succeed(request, acks)
            renewal, leased = await self._renew(holder, request) if look else (Renewal(), [])
            if renewal is None:
                reply = ExchangeReply(
                    acks=acks, commands=tuple(waiter.given), renewed=False, logged=logged
                )
                return reply
            sent = [command for command in leased if command not in waiter.given]
            waiter.open = max(0, waiter.open - len(sent))
            sent += await self._claim(waiter)
            stop = renewal.stop + renewal.lost
            if not (acks or sent or stop):
                sent += await self._wait(waiter, request.wait / 1e6)
            commands = _each_once([*waiter.given, *sent])
            reply = ExchangeReply(acks=acks, commands=commands, stop=stop, logged=logged)
            return reply
        finally:
            self._waiting.leave(waiter)
            self._remember(waiter, reply)

    def _must_look(self, request: ExchangeRequest) -> bool:
        """The worker asks, is new here, was leased something after its last reply, or lists nothing of what it was sent: that
        reply may be lost."""
        sent = self._sent.get(request.holder)
        if self._waiting.owes(request.holder) or sent is None:
            return True
        sent.difference_update(
            request.held, [LeaseKey(each.command_id, each.attempt) for each in request.reports]
        )
        return request.renew or bool(sent)

    def _remember(self, waiter: Waiter, reply: ExchangeReply | None) -> None:
        """What it was sent; nothing where it may have been leased more than that, so that the store is asked next time."""
        if reply is None or not reply.renewed or waiter.unsure or waiter.reserved:
            self._sent.pop(waiter.worker, None)
            return
        self._sent.setdefault(waiter.worker, set()).update(map(_held, reply.commands))
        self._sent.move_to_end(waiter.worker)
        while len(self._sent) > KEPT_HOLDERS:
            self._sent.popitem(last=False)

    async def _succeed(self, request: ExchangeRequest, acks: tuple[Ack, ...]) -> None:
        """Leases belong to one life of a worker. A new life knows nothing of the work before it but the endings in its spool:
        once these are recorded, the rest is lost at once."""
        lives = self._lives.setdefault(request.worker, [])
        if request.holder in lives:  # perhaps a late request of an earlier one
            return
        if lives and _owes(request, acks):  # its next exchange, or the leases run out
            return
        lives.append(request.holder)
        if len(lives) > 1:
            with suppress(Unavailable):  # else the lease runs out
                if await self._log.lose(lives[-2]):
                    for shard in range(self._shards.count):
                        await self._bus.publish(bus_port.inbox(shard))
        del lives[:-KEPT_LIVES]

    def _name_pools(self, pools: Iterable[str]) -> None:
        if not self._pools.issuperset(pools):
            self._pools.update(pools)
            self._new_pool.set()

    # -- reports --

    async def _keep_logs(self, parts: tuple[StoredRef, ...]) -> bool:
        """Before the reports: who sees a step's end finds what it printed. But no report waits long for it."""
        if not parts:
            return True
        try:
            async with asyncio.timeout(LOGS_PATIENCE):
                await steplogs.keep(self._log, parts)
        except (Unavailable, TimeoutError):
            return False
        except Exception:  # a bug in it must not keep reports from being recorded
            log.exception("step logs not stored")
        return True

    async def _record(self, reports: tuple[Report, ...]) -> tuple[Ack, ...]:
        """All are given to the dispatcher before the first is awaited: they share a commit."""
        checked = [(report, _refused(report)) for report in reports]
        decided = [
            (
                report,
                self._dispatcher.report(report)
                if self._shards.owns(self._shards.of(report.execution_id))
                else None,
            )
            for report, refused in checked
            if refused is None
        ]
        acks = [refused for _, refused in checked if refused is not None]
        for report, answer in decided:
            status: Answer = "retry" if answer is None else await answer
            if status == "retry" and not self._shards.owns(self._shards.of(report.execution_id)):
                status = await self._accept(report)
            acks.append(Ack(report.command_id, report.key, status, attempt=report.attempt))
        return tuple(acks)

    async def _accept(self, report: Report) -> Answer:
        try:
            accepted = await self._log.accept(report)
        except Unavailable:
            return "retry"
        await self._bus.publish(bus_port.inbox(self._shards.of(report.execution_id)))
        return "ok" if accepted else "stale"

    # -- commands --

    async def _renew(
        self, holder: str, request: ExchangeRequest
    ) -> tuple[Renewal | None, list[Command]]:
        """Renewed, and what the worker does not know it holds: that begins with a full lease too. None: the store is not
        there; the acks count all the same."""
        told = {report.command_id for report in request.reports}
        held = tuple(each for each in request.held if each.command_id not in told)
        listed = set(request.held)
        progress = {each.held: each.said[:PROGRESS] for each in request.progress}
        try:
            leased = await self._log.leased(holder)
            unknown = [
                each for each in leased if each.command_id not in told and _held(each) not in listed
            ]
            wanted = held + tuple(_held(command) for command in unknown)
            renewal = (
                await self._log.renew(holder, wanted, self._lease, progress)
                if wanted
                else Renewal()
            )
        except Unavailable:
            return None, []
        gone = set(renewal.lost) - listed
        lost = tuple(each for each in renewal.lost if each in listed)
        return Renewal(renewal.stop, lost), [
            command for command in unknown if _held(command) not in gone
        ]

    async def _claim(self, waiter: Waiter) -> list[Command]:
        """Nothing without a look where the last one found too little and nobody has said a word since."""
        now = asyncio.get_running_loop().time()
        if not waiter.open or now - self._waiting.empty_since(waiter.pools) < self._poll * 0.9:
            return []
        self._waiting.emptied(
            waiter.pools, now
        )  # before the look: what comes while it lasts counts
        places = waiter.take_open()
        claimed = await self._look(waiter, places)
        if claimed is None:
            self._waiting.doubt(waiter.pools)
        elif len(claimed) == places:
            self._waiting.wake(waiter.pools)  # there may be more, for others
        return claimed or []

    async def _look(self, waiter: Waiter, places: int) -> list[Command] | None:
        """None: the store did not say."""
        try:
            claimed = await self._log.claim(waiter.worker, waiter.pools, places, self._lease)
        except OutcomeUnknown:
            waiter.unsure = (
                True  # what may have been leased is sent at the next exchange: let it come soon
            )
            return None
        except Unavailable:
            waiter.open += places
            return None
        if claimed:
            fault("claim.after")
        waiter.open += places - len(claimed)
        return claimed

    async def _wait(self, waiter: Waiter, seconds: float) -> list[Command]:
        """Until a command is handed off, or a hint or the poll interval leads to one, or the time is over."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while not waiter.given and not waiter.unsure and (left := deadline - loop.time()) > 0:
            waiter.woken.clear()
            try:
                async with asyncio.timeout(min(left, self._poll)):
                    await waiter.woken.wait()
            except TimeoutError:
                pass
            if not waiter.given and (claimed := await self._claim(waiter)):
                return claimed
        return []


def _owes(request: ExchangeRequest, acks: tuple[Ack, ...]) -> bool:
    """It has endings that are not recorded yet: to be repeated, or too many for one exchange."""
    told = {(report.command_id, report.attempt) for report in request.reports}
    return any(ack.status == "retry" for ack in acks) or any(
        (each.command_id, each.attempt) not in told for each in request.held
    )


def _refused(report: Report) -> Ack | None:
    """What a report stores belongs to its own execution. What it names may be another's, as the result of a child is."""
    for stored in report.refs:
        uri = stored.reference.uri
        try:
            own = parse_uri(uri).execution_id == report.execution_id
        except BadReference:
            own = False
        if not own:
            why = f"{uri[:200]} is not a reference of execution {report.execution_id}"
            return Ack(report.command_id, report.key, "refused", why, report.attempt, FOREIGN)
    return None


def _held(command: Command) -> LeaseKey:
    return LeaseKey(command.command_id, command.attempt)


def _each_once(commands: Iterable[Command]) -> tuple[Command, ...]:
    return tuple({(command.command_id, command.attempt): command for command in commands}.values())

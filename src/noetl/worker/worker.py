"""The worker: a loop that talks to servers, a poll that waits for work, and one task per command.

*Talking* is an exchange that does not wait. It carries reports and renews leases. It happens at
once when there is a report, and otherwise often enough while commands are held. *Polling* is an
exchange that a server may keep open until it has work. It carries no report, so it never delays an
acknowledgement. Replies may be lost, late or doubled. Commands are identified by (command, attempt)
and reports by their key, so a second copy has no effect.

A tool runs only while the lease of its command is certainly in force. The lease counts from the
moment when the exchange that granted or renewed it was sent. Without renewal the worker stops the
tool itself, before another worker may start it. A command is held until its ending report is
acknowledged, so no server issues it again before that.
"""

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from math import exp
from operator import attrgetter

from msgspec import structs

from noetl.backoff import Backoff
from noetl.caches import LruCache
from noetl.model.clock import Clock
from noetl.model.commands import Command
from noetl.model.errors import Failure, NoetlError, NotPermitted, Unreached
from noetl.model.exchange import (
    MAX_PROGRESS_CHARS,
    Ack,
    ExchangeReply,
    ExchangeRequest,
    LeaseKey,
    Progress,
)
from noetl.model.ids import Tenant
from noetl.model.messages import StoredRef
from noetl.pipeline.environment import Environment, OutgoingEvent
from noetl.pipeline.execute import execute
from noetl.pipeline.failures import TaskFailed
from noetl.pipeline.secrets.redaction import Redactor
from noetl.results.port import ResultStore
from noetl.results.tenancy import StoreTenant
from noetl.tools.credentials.oauth import TokenCache
from noetl.tools.credentials.port import Credentials, EnvCredentials
from noetl.tools.registry import Registry
from noetl.worker import command_events
from noetl.worker.channel import Channel
from noetl.worker.logs import StepLogs
from noetl.worker.outbox import MAX_EXCHANGE_REPORTS, Outbox, OutboxEntry
from noetl.worker.plans import PlanCache
from noetl.worker.settings import WorkerSettings
from noetl.worker.spool import Spool

log = logging.getLogger(__name__)
MAX_REMEMBERED_COMMANDS = 10_000  # ended commands, so that a late reply does not start one again
AHEAD_WORK_S = (
    0.1  # seconds of short work that may wait here for room; long work is left to other workers
)
MAX_AHEAD_PER_SLOT = 16  # commands that may wait for room, per slot
LINGER_S = 0.003  # seconds that an ending waits for others while commands wait for room


@dataclass(slots=True, eq=False)
class RunningCommand:
    """A command that this worker runs.

    `renewed_at` is when its lease was last known to be renewed.
    """

    command: Command
    lease_key: LeaseKey
    renewed_at: float
    claimed_at: int
    launch: int = 1
    task: asyncio.Task[None] | None = None
    notice: asyncio.TimerHandle | None = None
    announced: bool = False
    requested_ending: OutgoingEvent | None = (
        None  # the ending to report after the command is told to stop
    )
    progress: str = ""  # the last progress text of its tool

    def set_progress(self, progress: str) -> None:
        self.progress = progress[:MAX_PROGRESS_CHARS]

    def cancel(self) -> None:
        if self.notice is not None:
            self.notice.cancel()
        if self.task is not None:
            self.task.cancel()


class JournalRefused(Exception):
    """A server will never accept this journal entry."""

    def __init__(self, ack: Ack) -> None:
        super().__init__(ack.key)
        self.ack = ack


@dataclass(slots=True)
class ExchangePause:
    """The pause before the next exchange. It grows with every failure in a row."""

    backoff: Backoff
    not_before: float = 0.0

    @property
    def failures(self) -> int:
        return self.backoff.failures

    def note_failure(self, now: float) -> None:
        self.not_before = now + self.backoff.delay
        self.backoff.count_failure()

    def reset(self) -> None:
        self.backoff.reset()
        self.not_before = 0.0


@dataclass(slots=True)
class DecayingCount:
    """Exponentially decaying event counter."""

    seconds: float
    count: float = 0.0
    last: float = 0.0

    def add_event(self, now: float) -> None:
        self.count, self.last = self.count_at(now) + 1, now

    def count_at(self, now: float) -> float:
        return self.count * exp((self.last - now) / self.seconds)


class RecentLeases:
    """Counts per lease key, for the `max_leases` most recent keys."""

    def __init__(self, max_leases: int) -> None:
        self._counts: LruCache[LeaseKey, int] = LruCache(max_leases)

    def count_up(self, lease_key: LeaseKey) -> int:
        number = (self._counts.peek(lease_key) or 0) + 1
        self._counts.put(lease_key, number)
        return number

    def __contains__(self, lease_key: LeaseKey) -> bool:
        return lease_key in self._counts


class Worker:
    """Claims commands, runs them, and reports them until the reports are acknowledged."""

    def __init__(
        self,
        channel: Channel,
        store: ResultStore,
        registry: Registry,
        clock: Clock,
        spool: Spool,
        settings: WorkerSettings,
        *,
        credentials: Credentials | None = None,
        redactor: Redactor | None = None,
        plans: PlanCache | None = None,
        store_tenant: StoreTenant | None = None,
    ) -> None:
        self._channel = channel
        self._tenant: Tenant | None = None  # as the first reply says
        self._store_tenant = store_tenant or StoreTenant()
        self._clock = clock
        self._spool = spool
        self._settings = settings
        self._plans = plans or PlanCache(channel, settings.plans)
        self._env = Environment(
            store,
            registry,
            clock,
            settings.worker_id,
            channel.list_manifest_parts,
            credentials=credentials or EnvCredentials(),
            redactor=Redactor() if redactor is None else redactor,
            tokens=TokenCache(registry.guard),
            context_limit=settings.context_limit,
        )
        self._logs = StepLogs(channel, clock)
        self._running_commands: dict[str, RunningCommand] = {}
        self._dying: dict[asyncio.Task[None], None] = {}
        self._outbox = Outbox()
        self._slots = asyncio.Semaphore(settings.slots)
        self._recent_ends = DecayingCount(AHEAD_WORK_S)
        self._launch_counts = RecentLeases(MAX_REMEMBERED_COMMANDS)
        self._journaled_leases = RecentLeases(MAX_REMEMBERED_COMMANDS)
        self._ended_leases = RecentLeases(MAX_REMEMBERED_COMMANDS)
        self._wake = asyncio.Event()
        self._poll: asyncio.Task[None] | None = None
        self._polled_places = 0  # free places that the running poll offers
        self._linger_until = float("-inf")  # an exchange before it would carry few endings
        first, longest = settings.shortest_delay, settings.longest_delay
        self._talk_pause = ExchangePause(Backoff(first, min(longest, 1.0)))
        self._poll_pause = ExchangePause(Backoff(first, longest))
        # An ending report could not be delivered: claim nothing until all are delivered.
        self._has_undelivered_endings = False
        self._draining = False
        self.is_drained = False  # it has ended, and holds no command
        self._is_unreached = False  # the last exchange reached no server
        self._is_drain_known = False  # a server has answered since draining began
        self._was_renewal_only = False  # the last exchange only renewed leases
        self._renewal_sent_at = float(
            "-inf"
        )  # when the last answered exchange that renews was sent

    # ---- the loop --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run until drained or cancelled.

        Reports that an earlier process could not deliver go first.
        """
        for report in await self._spool.load():
            self._outbox.add(report, spooled=True)
            self._has_undelivered_endings = True
        watching = asyncio.ensure_future(self._watch_leases())
        sending_logs = asyncio.ensure_future(self._logs.run())
        try:
            while not self._can_end():
                self._start_poll_if_wanted()
                if self._next_exchange_at() <= self._now():
                    await self._exchange_reports()
                else:
                    await self._sleep_until_due()
            self.is_drained = not self._outbox
        finally:
            await self._stop_everything([watching, sending_logs])
            await self._logs.close()

    def drain(self) -> None:
        """Claim nothing more. `run` returns when all commands have ended and their reports are
        acknowledged, or spooled while no server answers.

        The poll is cancelled. A server may have granted commands to it; it sends them again with
        the next exchange, and they run like the others.
        """
        self._draining = True
        self._is_unreached = False
        if self._poll is not None:
            self._poll.cancel()
        self._wake.set()

    def hand_back(self) -> None:
        """Drain, and stop what runs. Other workers continue it, and no lease has to run out."""
        self.drain()
        for job in list(self._running_commands.values()):
            self._stop_command(job, command_events.returned_event(job.command))

    @property
    def held_leases(self) -> tuple[LeaseKey, ...]:
        """The leases of this worker: of commands that it runs, and of commands with an
        unacknowledged ending."""
        lease_keys = {job.lease_key for job in self._running_commands.values()}
        lease_keys.update(entry.lease_key for entry in self._outbox.list_endings())
        return tuple(sorted(lease_keys, key=attrgetter("command_id", "attempt")))

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _can_end(self) -> bool:
        if self._running_commands or self._dying:
            return False
        if self._is_drain_known and not self._outbox:
            return True
        if not self._draining or not self._is_unreached:
            return False
        return all(entry.spooled for entry in self._outbox.list_endings())

    def _next_exchange_at(self) -> float:
        """When the next exchange that does not wait is due."""
        if self._outbox or (self._draining and not self._is_drain_known):
            if self._may_linger():
                return max(self._linger_until, self._talk_pause.not_before)
            return self._talk_pause.not_before
        return max(self._renewal_due_at(), self._talk_pause.not_before)

    def _may_linger(self) -> bool:
        """Whether endings may wait for more endings: commands wait for room here, so nothing
        stands still meanwhile. A journal entry is not kept waiting, because its task waits for it.
        """
        has_work = len(self._running_commands) > self._settings.slots
        only_endings = len(self._outbox) == self._outbox.ending_count
        return has_work and only_endings and len(self._outbox) < MAX_EXCHANGE_REPORTS

    def _renewal_due_at(self) -> float:
        renewals = (job.renewed_at for job in self._running_commands.values())
        return min(renewals, default=float("inf")) + self._settings.heartbeat

    async def _sleep_until_due(self) -> None:
        """Sleep until the next exchange is due, or something happens."""
        until = self._next_exchange_at()
        if self._wants_poll():
            until = min(until, self._poll_pause.not_before)
        deadline = None if until == float("inf") else until
        try:
            async with asyncio.timeout_at(deadline):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    async def _stop_everything(self, beside: list[asyncio.Task[None]]) -> None:
        tasks = [*beside, *self._dying]
        if self._poll is not None:
            tasks.append(self._poll)
        for job in self._running_commands.values():
            if job.task is not None:
                tasks.append(job.task)
            job.cancel()
        for task in tasks:
            task.cancel()
        self._running_commands.clear()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ---- polling ---------------------------------------------------------------------------------

    def _count_free_places(self) -> int:
        """How many more commands this worker takes."""
        if self._has_undelivered_endings or self._draining:
            return 0
        slots = self._settings.slots
        running = len(self._running_commands)
        # Commands that take longer than `AHEAD_WORK_S` may end in all slots at once and are still
        # not short, so one round of the slots does not count.
        short = int(self._recent_ends.count_at(self._now())) - slots
        ahead = min(max(0, short), slots * MAX_AHEAD_PER_SLOT)
        places = slots + ahead - running - len(self._dying)
        spool_room = self._spool.free_places - running - self._outbox.ending_count
        return max(0, min(places, spool_room))

    def _wants_poll(self) -> bool:
        """Whether to poll.

        Not while an ending is unacknowledged: the exchange that brings it asks for commands too,
        and a server would answer such a poll as soon as the ending is recorded.
        """
        return (
            self._poll is None and self._count_free_places() > 0 and not self._outbox.ending_count
        )

    def _start_poll_if_wanted(self) -> None:
        if self._wants_poll() and self._poll_pause.not_before <= self._now():
            self._polled_places = self._count_free_places()
            self._poll = asyncio.ensure_future(self._poll_once())

    async def _poll_once(self) -> None:
        wait = self._settings.poll
        try:
            request = self._make_request(self._polled_places, wait)
            await self._send_exchange(request, wait + self._settings.patience, self._poll_pause)
        finally:
            self._poll = None
            self._polled_places = 0
            self._wake.set()

    # ---- talking ---------------------------------------------------------------------------------

    def _make_request(
        self,
        free: int,
        wait: float,
        batch: Iterable[OutboxEntry] = (),
        logs: tuple[StoredRef, ...] = (),
    ) -> ExchangeRequest:
        """Make an exchange.

        It renews leases from time to time, not with every report, and always when an earlier reply may be
        lost.
        """
        settings = self._settings
        renew = bool(self._talk_pause.failures or self._poll_pause.failures or self._draining)
        if not renew:
            due = min(self._renewal_due_at(), self._renewal_sent_at + settings.heartbeat / 2)
            renew = self._now() >= due
        progress: list[Progress] = []
        if renew:
            for job in self._running_commands.values():
                if job.progress:
                    progress.append(Progress(job.lease_key, job.progress))
        return ExchangeRequest(
            worker=settings.worker_id,
            incarnation=settings.incarnation,
            pools=settings.pools,
            free=free,
            held=self.held_leases,
            reports=tuple(entry.report for entry in batch),
            logs=logs,
            wait=round(wait * 1_000_000),
            renew=renew,
            progress=tuple(progress),
        )

    async def _exchange_reports(self) -> None:
        """Send reports or renew leases, and handle the reply.

        A server does not renew commands that the exchange reports on. So when a renewal is due,
        one exchange carries no reports. It offers the places that the running poll does not offer.
        """
        self._was_renewal_only = (
            self._now() >= self._renewal_due_at() and not self._was_renewal_only
        )
        batch: list[OutboxEntry] = []
        if not self._was_renewal_only:
            batch = self._outbox.next_batch()
        logs = self._logs.list_ending_parts(entry.lease_key for entry in batch if entry.is_ending)
        free = max(0, self._count_free_places() - self._polled_places)
        draining = self._draining
        request = self._make_request(free, 0, batch, logs)
        reply = await self._send_exchange(request, self._settings.patience, self._talk_pause)
        if reply is not None:
            self._is_drain_known = draining
            await self._handle_answers(batch, logs, reply)
        if self._talk_pause.failures and self._outbox.ending_count:
            self._has_undelivered_endings = True
            await self._spool_endings()
        elif not self._outbox.ending_count:
            self._has_undelivered_endings = False

    async def _handle_answers(
        self,
        batch: list[OutboxEntry],
        logs: tuple[StoredRef, ...],
        reply: ExchangeReply,
    ) -> None:
        """Note which log parts and reports the server has stored."""
        if reply.logged:
            self._logs.forget_stored(logs)
        for entry, ack in self._outbox.match_acks(batch, reply.acks):
            await self._handle_ack(entry, ack)
        left = self._outbox.next_batch()
        if any(entry in left for entry in batch):
            self._talk_pause.note_failure(self._now())  # some must be repeated, but not at once

    async def _send_exchange(
        self, request: ExchangeRequest, patience: float, pause: ExchangePause
    ) -> ExchangeReply | None:
        """Send one exchange.

        Returns None if no reply came; then the next one waits a little longer.
        """
        sent = self._now()
        try:
            async with asyncio.timeout(patience):
                reply = await self._channel.exchange(request)
        except Exception as error:  # the worker survives every fault on the way to the servers
            self._is_unreached = isinstance(error, Unreached | NotPermitted)  # nothing was done
            pause.note_failure(self._now())
            _log_failed_exchange(error, pause.failures)
            return None
        self._is_unreached = False
        if not self._is_of_our_tenant(reply):
            pause.note_failure(self._now())
            return None
        if reply.renewed:
            pause.reset()
            if request.renew:
                self._note_renewal(request, sent)
        else:
            pause.note_failure(self._now())
        for command in reply.commands:
            self._start_command(command, sent)
        # May name a command of this same reply: then its tool is not called.
        for lease_key in reply.stop:
            job = self._running_commands.get(lease_key.command_id)
            if job is not None and job.lease_key == lease_key:
                self._stop_command(job, command_events.cancelled_event(job.command))
        return reply

    def _is_of_our_tenant(self, reply: ExchangeReply) -> bool:
        """Whether the token is still one of the tenant that this process began with.

        The first reply tells the tenant, before a command stores anything. Playbooks and
        credentials in memory are of that tenant, so commands of another are left to their leases.
        """
        if self._tenant is None:
            self._tenant = self._store_tenant.tenant = reply.tenant
        if reply.tenant == self._tenant:
            return True
        log.error("the token belongs to another tenant by now: start this worker again")
        return False

    def _note_renewal(self, request: ExchangeRequest, sent: float) -> None:
        self._renewal_sent_at = max(self._renewal_sent_at, sent)
        reported = {report.command_id for report in request.reports}
        for lease_key in request.held:
            job = self._running_commands.get(lease_key.command_id)
            if (
                job is not None
                and job.lease_key == lease_key
                and lease_key.command_id not in reported
            ):
                job.renewed_at = max(job.renewed_at, sent)

    async def _spool_endings(self) -> None:
        """Spool the endings that no server has acknowledged."""
        for entry in self._outbox.list_endings():
            if entry.spooled:
                continue
            try:
                await self._spool.add(entry.report)
                entry.spooled = True
            except OSError as error:  # the report stays in memory and is sent from there
                log.error("report not spooled", extra={"error": str(error)})

    async def _handle_ack(self, entry: OutboxEntry, ack: Ack) -> None:
        """Handle the acknowledgement of a report."""
        if ack.status == "retry":
            return
        self._outbox.remove_acknowledged(entry)
        if entry.spooled:
            await self._spool.remove(entry.report)
        if entry.is_ending:
            self._ended_leases.count_up(entry.lease_key)
        if ack.status == "stale":
            self._drop_command(entry.lease_key)
        elif ack.status == "refused":
            log.error("report refused", extra={"key": ack.key, "why": ack.message})
            substitute = command_events.replace_refused(entry.report, ack)
            if substitute is not None:
                self._outbox.add(substitute)
        if entry.answer is not None and not entry.answer.done():
            entry.answer.set_result(ack)

    # ---- commands --------------------------------------------------------------------------------

    def _start_command(self, command: Command, sent: float) -> None:
        """Start a command.

        Its lease counts from the exchange that brought it. If the lease may have run out, the
        command is ignored, and a server sends it again.
        """
        if self._now() - sent >= self._settings.deadline:
            return
        lease_key = LeaseKey(command.command_id, command.attempt)
        running = self._running_commands.get(command.command_id)
        if lease_key in self._ended_leases or self._outbox.has_ending(lease_key):
            return
        if running is None and lease_key in self._journaled_leases:
            # This worker gave the attempt up once. Only the next attempt knows its journal entries.
            self._post_report(command, command_events.cancelled_event(command))
            return
        if running is not None:
            if running.command.attempt >= command.attempt:
                return
            self._drop_command(running.lease_key)
        launch = self._launch_counts.count_up(lease_key)
        job = RunningCommand(command, lease_key, sent, self._clock.now(), launch)
        self._running_commands[command.command_id] = job
        job.task = asyncio.ensure_future(self._run_command(job))
        job.task.add_done_callback(lambda task: self._end_if_cut_off(job, task))
        if command.attempt > 1 and not self._slots.locked():
            self._announce_command(job)
        self._wake.set()

    def _return_if_it_waits(self, job: RunningCommand) -> None:
        """Return a command that gets no room in time.

        It was fetched ahead because others were short; if the ones before it are long, another
        worker may have room.
        """
        if self._slots.locked():
            delay, ending = self._settings.longest_wait, command_events.returned_event(job.command)
            job.notice = asyncio.get_running_loop().call_later(
                delay, self._stop_command, job, ending
            )

    def _announce_if_it_lasts(self, job: RunningCommand) -> None:
        """Announce a command that runs for a while; at once if it has an earlier attempt."""
        if job.notice is not None:
            job.notice.cancel()
        if job.announced:
            return
        if job.command.attempt > 1:
            self._announce_command(job)
            return
        delay = self._settings.notice
        if job.command.count > 1:
            delay = self._settings.chunk_notice
        job.notice = asyncio.get_running_loop().call_later(delay, self._announce_command, job)

    def _announce_command(self, job: RunningCommand) -> None:
        job.announced = True
        for sent in command_events.make_announcements(job.command, self._settings.worker_id):
            self._post_report(job.command, sent)

    async def _run_command(self, job: RunningCommand) -> None:
        """Run a command and post its ending."""
        command = job.command
        printed = self._logs.open_attempt(command, job.launch)
        self._return_if_it_waits(job)
        try:
            async with self._slots:
                self._announce_if_it_lasts(job)
                plan = await self._plans.load_plan(command.playbook)
                ending = await execute(
                    structs.replace(self._env, logs=printed, progress=job.set_progress),
                    plan,
                    command,
                    lambda sent: self._send_journal_entry(job, sent),
                    claimed_at=job.claimed_at,
                    launch=job.launch,
                )
        except asyncio.CancelledError:
            if job.requested_ending is None:
                raise
            ending = job.requested_ending
        except TaskFailed as failing:
            ending = self._failed_event(command, failing.failure)
        except JournalRefused as refused:
            ending = self._failed_event(command, command_events.refusal_failure(refused.ack))
        except Exception as error:  # a bug must end one step, not the worker
            log.exception("command failed by a bug")
            ending = self._bug_event(command, f"{type(error).__name__}: {error}")
        finally:
            printed.close()
        self._end_command(job, ending)

    def _failed_event(self, command: Command, reason: Failure) -> OutgoingEvent:
        reason = self._env.redactor.redact_failure(reason)
        return self._env.redact_event(
            command_events.failure_event(command, self._settings.worker_id, reason)
        )

    def _bug_event(self, command: Command, why: str) -> OutgoingEvent:
        message = f"the worker could not run this command: {why}"
        failure = Failure(code="INTERNAL", kind="internal", message=message[:1_000])
        return self._failed_event(command, failure)

    def _end_if_cut_off(self, job: RunningCommand, task: asyncio.Task[None]) -> None:
        """End a job if its task is over and did not end it; else its lease would be renewed for
        ever.

        A task that is cancelled before its first step runs no line of its coroutine, so a command
        that is stopped as it arrives ends here.
        """
        if self._running_commands.get(job.command.command_id) is not job:
            return
        if job.requested_ending is not None:
            self._end_command(job, job.requested_ending)
            return
        if task.cancelled():
            why = "something it waited for was cancelled"
        else:
            why = repr(task.exception())
        log.error(
            "command cut off by a bug", extra={"command_id": job.command.command_id, "error": why}
        )
        self._end_command(job, self._bug_event(job.command, why))

    def _end_command(self, job: RunningCommand, ending: OutgoingEvent) -> None:
        """Replace a job by its unacknowledged ending, without an await between, so that the command
        is held at every moment."""
        if job.notice is not None:
            job.notice.cancel()
        if job.requested_ending is None:
            self._recent_ends.add_event(self._now())
        if self._running_commands.get(job.command.command_id) is job:
            self._outbox.forget_command(job.lease_key)
            if not self._outbox:
                self._linger_until = self._now() + LINGER_S
            self._post_report(job.command, ending)
            del self._running_commands[job.command.command_id]
        self._wake.set()

    def _post_report(
        self,
        command: Command,
        sent: OutgoingEvent,
        answer: asyncio.Future[Ack] | None = None,
    ) -> None:
        report = command_events.make_command_report(command, self._settings.worker_id, sent)
        self._outbox.add(report, answer)
        self._wake.set()

    async def _send_journal_entry(self, job: RunningCommand, sent: OutgoingEvent) -> None:
        """Send a journal entry.

        Returns when it is recorded. For a stale entry it never returns, because the job is dropped.
        """
        answer: asyncio.Future[Ack] = asyncio.get_running_loop().create_future()
        self._journaled_leases.count_up(job.lease_key)
        self._post_report(job.command, sent, answer)
        ack = await answer
        if ack.status == "refused":
            raise JournalRefused(ack)

    # ---- stopping --------------------------------------------------------------------------------

    def _stop_command(self, job: RunningCommand, ending: OutgoingEvent) -> None:
        """Stop the tool, and report the stop."""
        if job.requested_ending is None:
            job.requested_ending = ending
            self._outbox.forget_command(job.lease_key)
            job.cancel()

    def _drop_command(self, lease_key: LeaseKey) -> None:
        """Stop the tool of a command that may be no longer ours, and report nothing more."""
        job = self._running_commands.get(lease_key.command_id)
        if job is None or job.lease_key != lease_key:
            return
        del self._running_commands[lease_key.command_id]
        job.requested_ending = None
        self._outbox.forget_command(lease_key)
        job.cancel()
        if job.task is not None and not job.task.done():
            self._dying[job.task] = None
            job.task.add_done_callback(self._forget_dying)

    def _forget_dying(self, task: asyncio.Task[None]) -> None:
        self._dying.pop(task, None)
        self._wake.set()

    async def _watch_leases(self) -> None:
        """Stop tools of commands without a renewed lease.

        This runs beside the main loop, so nothing that the loop waits for delays it.
        """
        deadline = self._settings.deadline
        while True:
            for job in list(self._running_commands.values()):
                if self._now() - job.renewed_at >= deadline:
                    command_id = job.command.command_id
                    log.warning("lease not renewed, tool stopped", extra={"command_id": command_id})
                    self._drop_command(job.lease_key)
            soonest = self._now()
            if self._running_commands:
                soonest = min(job.renewed_at for job in self._running_commands.values())
            await asyncio.sleep(max(soonest + deadline - self._now(), 0.001))


def _log_failed_exchange(error: Exception, failures: int) -> None:
    facts = {"error": str(error) or type(error).__name__, "failures": failures}
    if isinstance(error, NoetlError) and error.hint is not None:
        facts["hint"] = error.hint
    log.warning("exchange failed", extra=facts)

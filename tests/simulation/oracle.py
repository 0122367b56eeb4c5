"""What must always hold, checked at every commit and once more at the end. It trusts nothing but the log's own content.

Each check names the invariant it defends, so that a violation reads as a sentence. The oracle folds the log with the real engine
beside the system, and keeps its own books of commands, attempts, loops, effects and acknowledgements.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import Struct

from noetl.engine.fold import evolve
from noetl.engine.state import Execution, make_empty_execution
from noetl.engine.state import encode_execution as encode_state
from noetl.leases.port import ClaimedShard
from noetl.log.events.port import RecordedEvent
from noetl.log.projections.port import ShardRows
from noetl.log.queue.port import Renewal
from noetl.log.stores import Stores
from noetl.model import events as ev
from noetl.model.codec import encode
from noetl.model.commands import Command
from noetl.model.errors import Failure
from noetl.model.exchange import ExchangeReply, ExchangeRequest, LeaseKey
from noetl.model.ids import DEFAULT_TENANT, shard_of
from noetl.model.reference import Reference
from tests.inspection import CANARY
from tests.simulation.faulty import drive
from tests.simulation.tools import Effect

TERMINAL = (ev.PlaybookCompleted, ev.PlaybookFailed, ev.ExecutionCancelled)
ENDS = (
    ev.CommandCompleted,
    ev.CommandFailed,
    ev.CommandDead,
    ev.CommandCancelled,
    ev.ExpressionEvaluated,
)
PROMPT = 1.0  # seconds from a server's answer to the start of the tool it brings
MACHINE = ("WORKER_LOST", "REFERENCE_NOT_AVAILABLE")


class Violation(Exception):
    """An invariant was broken. `rule` is its name."""

    def __init__(self, rule: str, detail: str) -> None:
        super().__init__(f"{rule}: {detail}")
        self.rule = rule


@dataclass
class CommandBook:
    execution_id: str
    attempt: int = 1  # the highest the log speaks of
    ended: bool = False
    issued_at: int = 0


@dataclass
class LoopBook:
    size: int | None
    ok: int = 0
    failed: int = 0
    skipped: int = 0
    done: bool = False
    covered: set[int] = field(default_factory=set)


@dataclass
class FailureBook:
    """Failures of one execution, and what became of them."""

    failing: set[str] = field(
        default_factory=set
    )  # activations that failed and have not been routed
    unhandled: list[str] = field(default_factory=list)  # steps with a failure that no arc took
    recovered: int = 0


class Oracle:
    def __init__(self, stores: Stores, results: Any, shards: int) -> None:
        self._stores = stores
        self._results = results
        self._shards = shards
        self._read: dict[int, int] = dict.fromkeys(range(shards), 0)
        self._epochs: dict[int, int] = dict.fromkeys(range(shards), 0)
        self._keys: set[tuple[str, str]] = set()
        # by execution: its shard and its last event
        self._last_seqs: dict[str, tuple[int, int]] = {}
        self.states: dict[str, Execution] = {}
        self._folded: dict[str, dict[int, Execution]] = defaultdict(dict)
        self._terminal: set[str] = set()
        self.commands: dict[str, CommandBook] = {}
        self.loops: dict[str, LoopBook] = {}
        self._failures: dict[str, FailureBook] = defaultdict(FailureBook)
        self.handled: list[
            tuple[str, str, tuple[int, ...]]
        ] = []  # execution, failed step, arcs that were taken
        self.references: dict[str, Reference] = {}
        self.effects: list[Effect] = []
        self._journaled: dict[
            tuple[str, str, int], int
        ] = {}  # (command, task, run): how many events there were then
        self._delivered: dict[
            tuple[str, str, int], int
        ] = {}  # (process, command, attempt): likewise, when it was asked for
        self._sent: dict[tuple[str, str, int], float] = {}  # when a server last sent it
        self._running: dict[str, list[Effect]] = defaultdict(list)
        self.acknowledged: dict[tuple[str, str], int] = {}
        self._tried: dict[
            tuple[str, str, int, int], int
        ] = {}  # (command, task, run, tries): likewise
        self._worked: dict[str, list[tuple[int, int, int]]] = defaultdict(
            list
        )  # command: items [low, high) done, likewise
        self.signals: Counter[str] = Counter()
        self._asked: set[tuple[str, str, str]] = set()
        self._owned: dict[int, int] = {}
        self._rows: dict[str, int] = {}
        self._attempts: dict[tuple[str, str], int] = {}  # which attempt an event in the log is of
        self._state_writes: dict[tuple[str, str], list[tuple[str, int, Any]]] = defaultdict(
            list
        )  # (path, name): execution, event and value of each version
        self.dead: set[str] = set()
        self.machine_failures: set[str] = (
            set()
        )  # executions in which a failure that no playbook causes was recorded
        self.quarantined: set[str] = set()
        self.trace = hashlib.sha256()
        self.events = 0
        self.followed: dict[int, list[tuple[int, str]]] = defaultdict(list)
        self.error: Violation | None = None

    # -- continuously --------------------------------------------------------------------------------------------------

    def observe(self, what: str, args: tuple[Any, ...], result: Any) -> None:
        """Called at each commit point. The first violation is kept; the history goes on no further."""
        if self.error is not None:
            return
        try:
            if what == "log.append":
                self._read_appended()
            elif what == "projections.write_projections":
                self._check_projected(args[0], result)
            elif what == "queue.renew_leases":
                self._check_renewed(args[2], result)
            elif what == "leases.claim":
                self._taken_over(result)
        except Violation as violation:
            self.error = violation

    def _read_appended(self) -> None:
        for shard in range(self._shards):
            for recorded in drive(self._stores.log.follow_shard(shard, self._read[shard], 1000)):
                self._record(shard, recorded)
        if self._state_writes:
            self._state_is_what_was_written()

    def _record(self, shard: int, recorded: RecordedEvent) -> None:
        event, execution_id = recorded.event, recorded.execution_id
        self.trace.update(
            f"{shard} {recorded.seq} {recorded.epoch} {execution_id} ".encode() + encode(event)
        )
        self.events += 1
        if recorded.seq != self._read[shard] + 1:
            raise Violation(
                "gapless", f"shard {shard} goes from {self._read[shard]} to {recorded.seq}"
            )
        self._read[shard] = recorded.seq
        if recorded.shard != shard or shard != shard_of(execution_id, self._shards):
            raise Violation("shard", f"{execution_id} is in shard {shard}")
        if recorded.epoch < self._epochs[shard]:
            raise Violation(
                "fence",
                f"epoch {recorded.epoch} after {self._epochs[shard]} in shard {shard}: {event.key}",
            )
        self._epochs[shard] = recorded.epoch
        if (execution_id, event.key) in self._keys:
            raise Violation("unique key", f"{event.key} twice in {execution_id}")
        self._keys.add((execution_id, event.key))
        self._last_seqs[execution_id] = (shard, recorded.seq)
        state = self.states.get(execution_id) or make_empty_execution(execution_id)
        if event.at < state.last_at:
            raise Violation("time", f"{event.key} at {event.at} after {state.last_at}")
        self._terminals(execution_id, event)
        self._asked_once(execution_id, event)
        self._commands(execution_id, event)
        self._loops(event)
        self._check_failures(execution_id, event)
        if CANARY.encode() in encode(event):
            raise Violation("no row in an event", f"{event.key}: {event}")
        for reference in references_of(event):
            if reference.uri not in self.references:
                self._resolves(reference, event)
        if isinstance(event, ev.ExecutionQuarantined):
            self.quarantined.add(execution_id)
            raise Violation("quarantine", f"{execution_id}: {event.error}")
        if any(failure.code in MACHINE for failure in failures_of(event)):
            self.machine_failures.add(execution_id)
        before, state = state, evolve(state, event)
        self._wrote_state(execution_id, recorded.seq, before, state)
        if (
            isinstance(event, TERMINAL)
            and state.recovered != self._failures[execution_id].recovered
        ):
            counted = self._failures[execution_id].recovered
            raise Violation(
                "recovered", f"{execution_id} says {state.recovered}, the log has {counted}"
            )
        self.states[execution_id] = state
        self._folded[execution_id][recorded.seq] = state

    def _wrote_state(
        self, execution_id: str, seq: int, before: Execution, after: Execution
    ) -> None:
        """Every write that an event reports is one version, and it stands in the table with that event."""
        for name, known in after.playbook_state.items():
            earlier = before.playbook_state.get(name)
            if known.writes == (earlier.writes if earlier is not None else 0):
                continue
            versions = self._state_writes[after.path, name]
            versions.append((execution_id, seq, known.value))
            if known.version != len(versions):
                raise Violation(
                    "state is compared",
                    f"{execution_id} wrote version {known.version} of {name}, the {len(versions)}th",
                )
            if known.value != known.version:
                raise Violation(
                    "no increment is lost", f"write {known.version} of {name} made it {known.value}"
                )

    def _state_is_what_was_written(self) -> None:
        for row in drive(self._stores.state.list_state(DEFAULT_TENANT, ("", ""), 1000)):
            versions = self._state_writes[row.path, row.name]
            if row.version != len(versions):
                raise Violation(
                    "state is written with its event",
                    f"{row.name} has version {row.version}, {versions}",
                )
        for (path, name), versions in self._state_writes.items():
            history = drive(
                self._stores.state.read_history(DEFAULT_TENANT, path, name, 1 << 60, 1000)
            )
            stored = [(row.execution_id, row.seq, row.value) for row in reversed(history)]
            if stored != versions:
                raise Violation(
                    "state is written with its event",
                    f"{name} of {path}: {stored}, reported {versions}",
                )

    def _terminals(self, execution_id: str, event: ev.Event) -> None:
        if isinstance(event, TERMINAL):
            if execution_id in self._terminal:
                raise Violation(
                    "one end", f"{event.type} is a second terminal event of {execution_id}"
                )
            self._terminal.add(execution_id)
        elif execution_id in self._terminal:
            raise Violation("end is final", f"{event.key} after the end of {execution_id}")

    def _asked_once(self, execution_id: str, event: ev.Event) -> None:
        """One request, one event; one call of a child, one child."""
        if isinstance(event, ev.SignalReceived | ev.PlaybookPaused | ev.PlaybookResumed):
            asked = (event.type, execution_id, event.request)
            self.signals[execution_id] += isinstance(event, ev.SignalReceived)
        elif isinstance(event, ev.PlaybookInitialized) and event.parent is not None:
            asked = ("child", event.parent.execution_id, event.parent.call)
        else:
            return
        if asked in self._asked:
            raise Violation("asked once", f"{' '.join(asked)} is recorded twice")
        self._asked.add(asked)

    def _commands(self, execution_id: str, event: ev.Event) -> None:
        if isinstance(event, ev.CommandIssued):
            self.commands[event.command_id] = CommandBook(execution_id)
            if drive(self._stores.queue.find_status(event.command_id)) is None:
                raise Violation("outbox", f"{event.key} without a row in the queue")
            return
        command_id = getattr(event, "command_id", None)
        attempt = getattr(event, "attempt", None)
        if command_id is None or attempt is None:
            return
        book = self.commands.get(command_id)
        if book is None:
            raise Violation("known command", f"{event.key} of a command that was never issued")
        if book.ended:
            raise Violation(
                "one end of a command", f"{event.key} (attempt {attempt}) after the command's end"
            )
        if isinstance(event, ev.CommandReclaimed):
            if attempt <= book.attempt:
                raise Violation("attempts grow", f"{event.key} after attempt {book.attempt}")
            book.attempt = attempt
        elif isinstance(event, ev.CommandDead | ev.CommandCancelled):
            pass
        elif attempt < book.attempt:
            raise Violation(
                "attempt token",
                f"{event.key} of attempt {attempt}, attempt {book.attempt} is under way",
            )
        else:
            book.attempt = attempt
        self._attempts[execution_id, event.key] = attempt
        if isinstance(event, ev.TaskDone):
            self._journaled[command_id, event.task, event.run] = self.events
        if isinstance(event, ev.RetryStarted):
            self._tried[command_id, event.task, event.run, event.tries] = self.events
        if isinstance(event, ev.CommandProgress):
            self._worked[command_id].append((event.items.first, event.done, self.events))
        if isinstance(event, ENDS):
            book.ended = True
        if isinstance(event, ev.CommandDead):
            self.dead.add(execution_id)

    def _loops(self, event: ev.Event) -> None:
        if isinstance(event, ev.LoopStarted):
            if event.activation in self.loops:
                raise Violation("one epoch", f"{event.key} twice")
            self.loops[event.activation] = LoopBook(
                None if event.mode == "cursor" else event.collection.size
            )
        elif isinstance(event, ev.LoopDone):
            loop, stats = self.loops[event.activation], event.stats
            if loop.done:
                raise Violation("a loop closes once", event.key)
            loop.done = True
            if (
                stats.total != stats.ok + stats.failed + stats.skipped
                or min(stats.ok, stats.failed, stats.skipped) < 0
            ):
                raise Violation("stats add up", f"{event.step}: {stats}")
            if loop.size is not None and stats.total != loop.size:
                raise Violation(
                    "stats are of the collection", f"{event.step}: {stats}, {loop.size} items"
                )
            if stats.ok != loop.ok or stats.failed < loop.failed:
                raise Violation(
                    "stats are what was accepted",
                    f"{event.step}: {stats}, accepted {loop.ok} ok, {loop.failed} failed",
                )
        elif (
            isinstance(event, ev.CommandCompleted | ev.CommandFailed | ev.CommandProgress)
            and event.activation in self.loops
        ):
            loop = self.loops[event.activation]
            if loop.done:
                return
            if event.items is not None:
                loop.ok += event.items.ok
                loop.failed += event.items.failed
                loop.skipped += event.items.skipped
            elif isinstance(event, ev.CommandCompleted):
                loop.ok += 1
            else:
                loop.failed += 1

    def _check_failures(self, execution_id: str, event: ev.Event) -> None:
        """An execution that completed has every failure handled: by an arc that was taken, or by a policy that says so."""
        book = self._failures[execution_id]
        match event:
            case ev.CallError() | ev.StepExit() | ev.LoopDone() if not event.result.ok:
                book.failing.add(event.activation)
            case ev.LoopDone():
                book.recovered += event.stats.failed
            case ev.NextEvaluated() if event.activation in book.failing:
                book.failing.remove(event.activation)
                if event.chosen:
                    book.recovered += 1
                    self.handled.append(
                        (execution_id, event.step, tuple(chosen.arc for chosen in event.chosen))
                    )
                else:
                    book.unhandled.append(event.step)
            case ev.CommandCompleted() | ev.CommandProgress():
                for found in (
                    getattr(event, "recovered", None),
                    event.items and event.items.recovered,
                ):
                    book.recovered += found.count if found is not None else 0
            case ev.PlaybookCompleted() if book.unhandled or book.failing:
                where = ", ".join(book.unhandled) or "a step that was never routed"
                raise Violation(
                    "no green without handling", f"{execution_id} completed, and {where} failed"
                )

    def _resolves(self, reference: Reference, event: ev.Event) -> None:
        if reference.format == "manifest":
            return
        self.references[reference.uri] = reference
        try:
            drive(self._results.resolve(reference))
        except Exception as error:
            raise Violation(
                "references resolve", f"{reference.uri} of {event.key}: {error!r}"
            ) from error

    def _check_projected(self, batch: list[ShardRows], applied: list[bool]) -> None:
        for each, is_applied in zip(batch, applied, strict=True):
            if not is_applied:
                continue
            end = self._read[each.shard]
            if each.checkpoint > end:
                text = f"checkpoint {each.checkpoint} of shard {each.shard}, its log ends at {end}"
                raise Violation("projection", text)
            for row in each.rows:
                self._row(drive(self._stores.projections.read_projection(row.execution_id)))
            self._check_covered(each)

    def _check_covered(self, written: ShardRows) -> None:
        """Every event up to a checkpoint is in the row of its execution."""
        for execution_id, (shard, last) in self._last_seqs.items():
            if shard != written.shard or last > written.checkpoint:
                continue
            if self._rows.get(execution_id, 0) < last:
                text = f"checkpoint {written.checkpoint} passes event {last} of {execution_id}"
                raise Violation("projection", text)

    def _check_renewed(self, held: tuple[LeaseKey, ...], renewal: Renewal) -> None:
        """A worker that is not told that a lease is lost holds it."""
        for each in held:
            status = drive(self._stores.queue.find_status(each.command_id))
            if each not in renewal.lost and status != ("leased", each.attempt):
                raise Violation(
                    "renewal",
                    f"attempt {each.attempt} of {each.command_id} was renewed, its row is {status}",
                )

    def _taken_over(self, claimed: list[ClaimedShard]) -> None:
        for each in claimed:
            if each.epoch <= self._owned.get(each.shard, 0):
                raise Violation(
                    "takeover", f"shard {each.shard} was taken again with epoch {each.epoch}"
                )
            self._owned[each.shard] = each.epoch

    def _row(self, row: Any) -> None:
        if row is None:
            return
        if row.last_seq < self._rows.get(row.execution_id, 0):
            raise Violation(
                "projection",
                f"{row.execution_id} goes back from {self._rows[row.execution_id]} to {row.last_seq}",
            )
        self._rows[row.execution_id] = row.last_seq
        folded = self._folded[row.execution_id]
        state = folded.get(row.last_seq)
        if state is None:
            raise Violation(
                "projection",
                f"{row.execution_id} is projected at {row.last_seq}, which is not one of its events",
            )
        if row.status != state.status and not (state.paused or state.quarantined):
            raise Violation(
                "projection",
                f"{row.execution_id} at {row.last_seq} is {state.status}, not {row.status}",
            )
        if row.state is not None and row.state != encode_state(state):
            raise Violation(
                "projection",
                f"{row.execution_id} at {row.last_seq}: stored state differs from the fold",
            )

    # -- what tools and workers see --------------------------------------------------------------------------------------

    def note_call(self, effect: Effect) -> None:
        """A tool begins. Not one that was journaled before its worker got the command, nor beside another attempt of it."""
        self.effects.append(effect)
        if self.error is None:
            try:
                self._not_again(effect)
                self._not_beside_another(effect)
            except Violation as violation:
                self.error = violation

    def _not_again(self, effect: Effect) -> None:
        if effect.command is None:
            return
        command_id, attempt = effect.command.command_id, effect.command.attempt
        identity = effect.identity
        delivered = self._delivered.get((effect.process.name, command_id, attempt))
        if delivered is None:
            return
        where = f"{identity.step}.{identity.task} run {identity.run} on {effect.process.name} (attempt {attempt})"
        if identity.index is not None:
            for low, high, mark in self._worked[command_id]:
                if low <= identity.index < high and mark <= delivered:
                    raise Violation(
                        "journal",
                        f"{where}: item {identity.index} again after its progress was recorded",
                    )
            return
        if (
            self._journaled.get((command_id, identity.task, identity.run), delivered + 1)
            <= delivered
        ):
            raise Violation("journal", f"{where}: again after its entry was recorded")
        if (
            self._tried.get(
                (command_id, identity.task, identity.run, identity.attempt), delivered + 1
            )
            <= delivered
        ):
            raise Violation(
                "tries are counted",
                f"{where}: try {identity.attempt} again after it was recorded as failed",
            )

    def _not_beside_another(self, effect: Effect) -> None:
        """Only a pause or a late answer, which a worker cannot notice, lets a tool run beside its own successor."""
        held = effect.command
        if (
            held is not None
            and effect.at
            - self._sent.get((effect.process.name, held.command_id, held.attempt), 0.0)
            > PROMPT
        ):
            return
        beside = self._running[effect.key] = [
            other for other in self._running[effect.key] if other.running and other.process.alive
        ]
        for other in beside:
            if not other.process.paused and other.process.pauses == other.pauses:
                raise Violation(
                    "one at a time",
                    f"{effect.identity} begins on {effect.process.name} while it runs on {other.process.name}",
                )
        beside.append(effect)

    def note_delivery(self, process: str, command: Command, mark: int, sent: float) -> None:
        self._delivered.setdefault((process, command.command_id, command.attempt), mark)
        self._sent[process, command.command_id, command.attempt] = sent
        if self.error is None and command.command_id not in self.commands:
            self.error = Violation(
                "publish after commit",
                f"{process} has command {command.command_id} of {command.step}, which is not in the log",
            )

    def note_reply(self, request: ExchangeRequest, reply: ExchangeReply) -> None:
        """A report that is acknowledged is in the log, or on its way there in the inbox, as the attempt that made it."""
        if self.error is not None:
            return
        for report, ack in zip(
            request.reports, reply.acks, strict=True
        ):  # an answer each, in the same order
            if ack.status != "ok":
                continue
            key = (report.execution_id, report.event.key)
            self.acknowledged[key] = report.attempt
            if self._attempts.get(key, report.attempt) != report.attempt:
                self.error = Violation(
                    "attempt token",
                    f"{key[1]} was accepted from attempt {report.attempt}, attempt {self._attempts[key]} is in the log",
                )

    # -- at the end ----------------------------------------------------------------------------------------------------

    def at_end(self) -> None:
        """After all faults: what was acknowledged is stored, what is stored folds and resolves."""
        if self.error is not None:
            raise self.error
        self._read_appended()
        for shard, seen in self.followed.items():
            stored = [
                (recorded.seq, recorded.event.key)
                for recorded in drive(self._stores.log.follow_shard(shard, 0, 100_000))
            ]
            if seen != stored[: len(seen)]:
                raise Violation(
                    "readers miss nothing",
                    f"a follower of shard {shard} saw {len(seen)} other events than stand there",
                )
        for execution_id, state in self.states.items():
            fresh = make_empty_execution(execution_id)
            for recorded in drive(self._stores.log.read_events(execution_id, 0, 100_000)):
                fresh = evolve(fresh, recorded.event)
            if encode_state(fresh) != encode_state(state):
                raise Violation("fold", f"{execution_id} read again folds to another state")
            row = drive(self._stores.projections.read_projection(execution_id))
            if row is not None:
                self._row(row)
        for reference in self.references.values():
            try:
                drive(self._results.resolve(reference))
            except Exception as error:
                raise Violation(
                    "references resolve", f"{reference.uri} at the end: {error!r}"
                ) from error

    def when_quiet(self) -> None:
        """After the faults have stopped and everything had time: nothing is stuck, nothing is left over."""
        for execution_id, status in self.behind().items():
            raise Violation("projection", f"{execution_id} has ended, its projection says {status}")
        waiting = {
            row.execution_id
            for shard in range(self._shards)
            for row in drive(self._stores.inbox.read_messages([shard], 1000))
        }
        for (execution_id, key), attempt in sorted(self.acknowledged.items()):
            if (execution_id, key) not in self._keys and execution_id not in self._terminal:
                raise Violation(
                    "acknowledged is stored",
                    f"{key} of {execution_id} was acknowledged and is not in the log",
                )
            if self._attempts.get((execution_id, key), attempt) != attempt:
                raise Violation(
                    "attempt token",
                    f"{key} was acknowledged as attempt {attempt}, another is in the log",
                )
        for execution_id in sorted(self._terminal):
            if execution_id in waiting:
                raise Violation(
                    "nothing left over",
                    f"the inbox still has rows of {execution_id}, which has ended",
                )
        for command_id, book in self.commands.items():
            status = drive(self._stores.queue.find_status(command_id))
            if (
                book.execution_id in self._terminal
                and status is not None
                and status[0] in ("queued", "leased", "parked", "lost")
            ):
                raise Violation(
                    "nothing left over", f"command {command_id} of an ended execution is {status}"
                )
        for effect in self.effects:
            if (
                effect.running
                and effect.process.alive
                and self.has_ended(effect.identity.execution_id)
            ):
                raise Violation(
                    "stopped",
                    f"{effect.identity} still runs on {effect.process.name}, its execution has ended",
                )
        for activation, loop in self.loops.items():
            if not loop.done and all(book.ended for book in self.commands.values()):
                state = next((s for s in self.states.values() if activation in s.activations), None)
                if state is not None and state.terminal:
                    raise Violation("every loop closes", activation)

    def behind(self) -> dict[str, str | None]:
        """Executions that have ended, although their projection does not say so."""
        rows = {
            each: drive(self._stores.projections.read_projection(each))
            for each in sorted(self._terminal)
        }
        return {
            each: row and row.status
            for each, row in rows.items()
            if row is None or row.status != self.states[each].status
        }

    def has_ended(self, execution_id: str) -> bool:
        return execution_id in self._terminal


def failures_of(event: ev.Event) -> Iterator[Failure]:
    result, items = getattr(event, "result", None), getattr(event, "items", None)
    for failure in (
        getattr(event, "error", None),
        getattr(result, "error", None),
        getattr(items, "first_error", None),
    ):
        if isinstance(failure, Failure):
            yield failure


def references_of(value: Any) -> Iterator[Reference]:
    if isinstance(value, Reference):
        yield value
    elif isinstance(value, Struct):
        for name in value.__struct_fields__:
            inner = getattr(value, name)
            if inner is not None and not isinstance(inner, str | int | float):
                yield from references_of(inner)
    elif isinstance(value, tuple | list):
        for inner in value:
            yield from references_of(inner)
    elif isinstance(value, dict):
        if "ref_id" in value and "uri" in value:
            try:
                yield msgspec.convert(value, Reference)
            except msgspec.ValidationError:
                return
        else:
            for inner in value.values():
                yield from references_of(inner)

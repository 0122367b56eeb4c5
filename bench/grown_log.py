"""A log as it grows over weeks, made at once: executions played by the engine in memory, their rows copied into Postgres.

Some playbooks are chains, some branch, some loop, some retry, some fail; results refer to what they were made from. What the
projector would have written stands beside the log.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any

import psycopg
import yaml

from noetl.engine.interpretation import interpret
from noetl.engine.machine import advance
from noetl.engine.state import Execution, PinnedPlaybook, make_empty_execution
from noetl.engine.summary import summarise_execution
from noetl.log.events.event_halves import split_event
from noetl.log.events.packing import pack_events
from noetl.log.projections.stored_state import compress_state
from noetl.model import events as e
from noetl.model import messages as m
from noetl.model.codec import encode
from noetl.model.commands import Command
from noetl.model.decisions import Issue
from noetl.model.envelope import Envelope, Meta, make_failed_envelope
from noetl.model.errors import Failure
from noetl.model.ids import DEFAULT_TENANT, ExecutionId, Snowflakes, shard_of
from noetl.model.reference import Reference, make_result_key
from noetl.playbook.plan import Plan, compile_plan
from noetl.playbook.validation import load_or_raise
from noetl.results.formats.encoding import compute_payload_checksum, derive_ref_id

PYTHON = {"kind": "python", "code": "result = {'n': 1}"}
FAILS = {"kind": "python", "code": "raise ValueError('no')"}
PAYLOAD = b'{"n":1}'
TOOL_META = Meta(
    tool={"kind": "python", "version": "0.1.0", "noetl": "0.1.0", "runtime": "cpython 3.11.7"}
)
PART = "execution_id, last_seq, epoch, tenant, count, shard, ends, events"
PROJECTED = (
    "execution_id, shard, tenant, path, status, last_seq, started_at, updated_at, ended_at, parent, retry_of, error, steps, "
    "recovered, state, state_hash"
)
REFERRED = (
    "ref_id, tenant, execution_id, tier, uri, bytes, format, sha256, inputs, payload, at, part_seq"
)


@dataclass(frozen=True)
class ExecutionKind:
    """A playbook; steps of the tool FAILS fail."""

    path: str
    text: str
    plan: Plan
    workload: dict[str, Any]

    @classmethod
    def make_kind(
        cls, path: str, steps: list[dict[str, Any]], workload: dict[str, Any] | None = None
    ) -> "ExecutionKind":
        document = {
            "apiVersion": "noetl.io/v2",
            "kind": "Playbook",
            "metadata": {"name": path},
            "workflow": steps,
        }
        text = yaml.safe_dump(document, sort_keys=False)
        return cls(
            path,
            text,
            compile_plan(load_or_raise(text), sha256(text.encode()).hexdigest()),
            workload or {},
        )


def make_kinds(length: int) -> list[ExecutionKind]:
    """About six events a step. A chain has three steps or more."""
    names = [f"s{n}" for n in range(length)]
    chain = [
        {"step": name, "tool": PYTHON} | ({"next": [{"step": after, "when": "{{ output.status == 'ok' }}"}]} if after else {})
        for name, after in zip(names, [*names[1:], None], strict=True)
    ]  # fmt: skip
    loop = {
        "in": "{{ workload.rows }}",
        "spec": {"mode": "parallel", "max_in_flight": 4, "chunk": 1},
    }
    looped = [*chain[:2], {**chain[2], "loop": loop}, *chain[3:]]
    arcs = [{"step": f"b{n}"} for n in range(length // 2)]
    wide: list[dict[str, Any]] = [
        {"step": "begin", "next": {"spec": {"mode": "inclusive"}, "arcs": arcs}}
    ]
    wide += [{"step": f"b{n}", "tool": PYTHON, "next": "meet"} for n in range(length // 2)]
    handled = [
        {
            **chain[0],
            "tool": FAILS,
            "next": [{"step": "s1", "when": "{{ output.status == 'error' }}"}],
        },
        *chain[1:],
    ]
    return [
        ExecutionKind.make_kind("flows/chain", chain),
        ExecutionKind.make_kind("flows/loop", looped, {"rows": list(range(6))}),
        ExecutionKind.make_kind("flows/wide", [*wide, {"step": "meet", "tool": PYTHON}]),
        ExecutionKind.make_kind("flows/handled", handled),
        ExecutionKind.make_kind("flows/failing", [*chain[:-1], {**chain[-1], "tool": FAILS}]),
    ]


@dataclass(frozen=True)
class PlayedResult:
    ref_id: int
    uri: str
    inputs: list[int] | None
    part: int  # the number of the part that records it, from 0
    at: int


@dataclass
class PlayedExecution:
    """One execution from its start to its end."""

    kind: ExecutionKind
    execution_id: ExecutionId
    at: int
    state: Execution = field(init=False)
    events: list[e.Event] = field(default_factory=list)
    parts: list[tuple[e.Event, ...]] = field(default_factory=list)  # what each message led to
    results: list[PlayedResult] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.state = make_empty_execution(self.execution_id)
        fixed = PinnedPlaybook(self.execution_id, self.kind.plan, self.kind.workload)
        queue = self._send_message(
            fixed,
            m.Start(
                execution_id=self.execution_id,
                path=self.kind.path,
                playbook=self.kind.plan.hash,
                version=1,
            ),
        )
        while queue:
            command = queue.pop(0)
            report = m.Report(
                execution_id=self.execution_id,
                command_id=command.command_id,
                attempt=1,
                worker="w",
                event=self._answer_command(command),
            )
            queue += self._send_message(fixed, report)
        assert self.state.terminal, self.state

    def _send_message(self, fixed: PinnedPlaybook, message: m.Message) -> list[Command]:
        self.at += 1_000 + len(self.events) * 7 % 5_000
        given = interpret(fixed, self.state, message, self.at)
        assert isinstance(given, tuple), given
        made = advance(fixed, self.state, *given)
        self.state = made.state
        self.events += made.events
        self.parts.append(made.events)
        return [effect.command for effect in made.effects if isinstance(effect, Issue)]

    def _answer_command(self, command: Command) -> e.Reported:
        began = {"worker": "w", "claimed_at": self.at - 900, "started_at": self.at - 500}
        if self._is_failing(command):
            envelope = make_failed_envelope(
                Failure(code="PYTHON_ERROR", message="ValueError: no", kind="user")
            )
            return e.CommandFailed(
                command_id=command.command_id, attempt=1, result=envelope, **began
            )
        items = None
        if command.kind == "chunk":
            items = e.Items(first=command.first, ok=command.count, micros=command.count * 50)
        envelope = Envelope(
            status="ok",
            reference=self._make_reference(command),
            context={"py": {"exit_code": 0}, "n": 1},
            meta=TOOL_META,
        )
        return e.CommandCompleted(
            command_id=command.command_id, attempt=1, result=envelope, items=items, **began
        )

    def _is_failing(self, command: Command) -> bool:
        tasks = self.kind.plan.steps[command.step].step.tool
        return "raise" in repr(tasks)

    def _make_reference(self, command: Command) -> Reference:
        """The result is read by the next one. Its row names the part that the report will be."""
        key = make_result_key(command.command_id, 1, command.step)
        uri = f"noetl://execution/{self.execution_id}/result/{command.step}/{key}"
        reference = Reference(
            ref_id=derive_ref_id(uri),
            type="kv",
            uri=uri,
            sha256=compute_payload_checksum(PAYLOAD),
            bytes=len(PAYLOAD),
            format="json",
        )
        inputs = [self.results[-1].ref_id] if self.results else None
        part = len(self.parts)
        self.results.append(PlayedResult(int(reference.ref_id), uri, inputs, part, self.at))
        return reference


def format_moment(at: int) -> str:
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=at)).isoformat()


def play_executions(
    executions: int, first: int, last: int, length: int
) -> Iterator[PlayedExecution]:
    """Begun at even distances from `first` on, before `last`."""
    choices, ids = make_kinds(length), Snowflakes(7)
    for number in range(executions):
        at = first + (last - first) * number // executions
        yield PlayedExecution(choices[number % len(choices)], ExecutionId(ids.draw_id(at)), at)


def grow_log(dsn: str, executions: int, first: int, last: int, length: int = 16) -> int:
    """Into an empty log; how many events."""
    with psycopg.connect(dsn) as connection:
        (shards,) = connection.execute(
            "select count(*)::int from noetl.execution_shard"
        ).fetchone() or (0,)
        seqs = dict.fromkeys(range(shards), 0)
        catalog = "insert into noetl.catalog (tenant, path, version, hash, text, at) values (1, %s, 1, %s, %s, now())"
        for kind in make_kinds(length):
            connection.execute(catalog, (kind.path, kind.plan.hash, kind.text))
        made: list[PlayedExecution] = []
        for each in play_executions(executions, first, last, length):
            made.append(each)
            if len(made) == 200:
                copy_events(connection, made, seqs)
                made.clear()
        copy_events(connection, made, seqs)
        for shard, seq in seqs.items():
            connection.execute(
                "update noetl.execution_shard set last_seq = %s where shard_id = %s", (seq, shard)
            )
            connection.execute(
                "insert into noetl.checkpoint (shard_id, seq, at) values (%s, %s, now())",
                (shard, seq),
            )
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("analyze")
    return sum(seqs.values())


def make_result_rows(played: PlayedExecution, part_seqs: list[int]) -> list[tuple[Any, ...]]:
    checksum = compute_payload_checksum(PAYLOAD)
    return [
        (result.ref_id, DEFAULT_TENANT, int(played.execution_id), "kv", result.uri, len(PAYLOAD), "json", checksum,
         result.inputs, PAYLOAD, format_moment(result.at), part_seqs[result.part])
        for result in played.results
    ]  # fmt: skip


def copy_events(
    connection: "psycopg.Connection[Any]", made: list[PlayedExecution], seqs: dict[int, int]
) -> None:
    rows: dict[str, list[tuple[Any, ...]]] = {
        "event_part": [],
        "execution": [],
        "workload": [],
        "result_ref": [],
    }
    for each in made:
        shard = shard_of(each.execution_id, len(seqs))
        part_seqs: list[int] = []
        for part in each.parts:
            seqs[shard] += len(part)
            part_seqs.append(seqs[shard])
            events = pack_events(
                [(event.key, *split_event(event, encode(event))) for event in part]
            )
            ends = any(isinstance(event, e.Terminal) for event in part)
            rows["event_part"].append(
                (int(each.execution_id), seqs[shard], 1, 1, len(part), shard, ends, events)
            )
        told = summarise_execution(each.state)
        rows["execution"].append(
            (int(each.execution_id), shard, 1, told["path"], told["status"], seqs[shard], told["started_at"],
             told["updated_at"], told["ended_at"], None, None, told["error"], told["steps"], told["recovered"],
             compress_state(told["state"]), told["state_hash"])
        )  # fmt: skip
        rows["workload"].append(
            (
                int(each.execution_id),
                1,
                each.kind.plan.hash,
                str(each.kind.workload).replace("'", '"'),
            )
        )
        rows["result_ref"] += make_result_rows(each, part_seqs)
    columns = {
        "event_part": PART, "execution": PROJECTED, "workload": "execution_id, tenant, playbook, data", "result_ref": REFERRED,
    }  # fmt: skip
    for table, found in rows.items():
        with connection.cursor().copy(f"copy noetl.{table} ({columns[table]}) from stdin") as into:
            for row in found:
                into.write_row(row)

"""The append of the log on Postgres: a step a part, alone and in batches, beside a single-row commit of the same run.

A step is what the life of one brings: 6 events, one command finished, one issued and handed to a worker, one reference with its
small payload. Postgres is the embedded one, fsync on, in a directory that is deleted afterwards; `NOETL_DB_URL` uses another.

    uv run python bench/append.py [--json] [--steps N]
"""

import argparse
import asyncio
import json
import os
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from noetl.embedded import EmbeddedPostgres
from noetl.leases.postgres import LeasesPostgres
from noetl.log.events.port import AppendBatch, Appended, EventLog, ExecutionPart, Handoff
from noetl.log.events.postgres import LogPostgres
from noetl.model import events as e
from noetl.model.commands import Command, Scope
from noetl.model.decisions import Effect, Finish, Issue
from noetl.model.envelope import Envelope, Meta
from noetl.model.exchange import LEASE_MICROS, LeaseKey
from noetl.model.ids import (
    DEFAULT_TENANT,
    CommandId,
    ExecutionId,
    RefId,
    Snowflakes,
    activation_id,
    command_id,
    shard_of,
)
from noetl.model.messages import StoredRef
from noetl.model.reference import Reference
from noetl.postgres.migrations import migrate
from noetl.postgres.pool import Database, connect

WARM = 8  # rounds that are not counted: plans are made
PAYLOAD = b'{"i":12345,"name":"a small result","values":[1,2,3,4,5,6,7,8]}' * 4


@dataclass(frozen=True)
class EndedStep:
    """What the end of a step adds to an append."""

    result: Envelope
    events: tuple[e.Event, ...] = ()
    effects: tuple[Effect, ...] = ()
    taken: tuple[LeaseKey, ...] = ()
    refs: tuple[StoredRef, ...] = ()


class AppendRun:
    """One execution as its owner writes it: `make_step` gives the next part."""

    def __init__(self, execution_id: ExecutionId, shards: int) -> None:
        self.execution_id = execution_id
        self.shard = shard_of(execution_id, shards)
        self.seq = 0
        self.number = 0
        self.command: CommandId | None = None

    def make_step(self, ids: Snowflakes) -> ExecutionPart:
        """The append that ends one step, except before the first one, and begins the next."""
        at = time.time_ns() // 1000
        ended = self._end_step(at, ids)
        name, following = f"step_{self.number}", f"step_{self.number + 1}"
        entered = activation_id(self.execution_id, following, str(self.number + 1))
        issued = command_id(entered, "run")
        begin_events: list[e.Event] = [
            e.StepEnter(
                at=at,
                step=following,
                activation=entered,
                run=1,
                cause=f"next:{activation_id(self.execution_id, name, str(self.number))}",
                origins=(name,),
            ),
            e.CommandIssued(
                at=at, command_id=issued, step=following, activation=entered, kind="run", pool="cpu"
            ),
        ]
        scope = Scope(
            workload={"a": 1},
            ctx={"b": "two"},
            results={name: ended.result},
            path="bench/append",
        )
        command = Command(
            command_id=issued,
            execution_id=self.execution_id,
            playbook="f" * 64,
            step=following,
            activation=entered,
            scope=scope,
        )
        part = ExecutionPart(
            execution_id=self.execution_id,
            shard=self.shard,
            tenant=DEFAULT_TENANT,
            after=self.seq,
            events=(*ended.events, *begin_events),
            effects=(*ended.effects, Issue(command)),
            taken=ended.taken,
            refs=ended.refs,
            handoffs=(Handoff(issued, "worker-1/1"),),
        )
        self.command = issued
        self.number += 1
        return part

    def _end_step(self, at: int, ids: Snowflakes) -> EndedStep:
        """What the end of the running step adds to an append. Before the first step, a result only."""
        name, following = f"step_{self.number}", f"step_{self.number + 1}"
        finished = self.command
        reference = Reference(
            ref_id=RefId(ids.draw_id(at)),
            type="kv",
            uri=f"noetl://execution/{self.execution_id}/result/{name}/{finished}-1-main",
            sha256="0" * 64,
            bytes=len(PAYLOAD),
            rows=1,
            format="json",
        )
        result = Envelope(
            status="ok",
            reference=reference,
            context={"i": 12345, "row_count": 1},
            meta=Meta(tool={"kind": "python", "noetl": "0.1.0"}),
        )
        if finished is None:
            return EndedStep(result)
        activation = activation_id(self.execution_id, name, str(self.number))
        without_context = result.without_context()
        completed = e.CommandCompleted(
            at=at,
            command_id=finished,
            attempt=1,
            result=result,
            step=name,
            activation=activation,
            worker="worker-1/1",
            claimed_at=at - 900,
            started_at=at - 800,
        )
        called = e.CallDone(
            at=at, step=name, activation=activation, result=without_context, command_id=finished
        )
        left = e.StepExit(at=at, step=name, activation=activation, result=without_context)
        routed = e.NextEvaluated(
            at=at,
            step=name,
            activation=activation,
            event="call.done",
            verdicts=(e.Verdict(step=following, verdict="taken"),),
            chosen=(e.Chosen(arc=0, step=following),),
        )
        return EndedStep(
            result,
            events=(completed, called, left, routed),
            effects=(Finish(finished),),
            taken=(LeaseKey(finished, 1),),
            refs=(StoredRef(reference=reference, payload=PAYLOAD),),
        )


async def measure_appends(
    log: EventLog,
    epochs: dict[int, int],
    ids: Snowflakes,
    together: int,
    steps: int,
    commit: Any,
) -> dict[str, Any]:
    """`together` executions, a step each per append, until there are so many steps; a single-row commit after each append,
    so that both see the same machine."""
    runs = [
        AppendRun(ExecutionId(ids.draw_id(time.time_ns() // 1000)), len(epochs))
        for _ in range(together)
    ]
    rounds = max(40, steps // together)
    spent: list[float] = []
    commits: list[float] = []
    client = 0.0
    for number in range(rounds + WARM):
        batch = AppendBatch(
            epochs=epochs, parts=tuple(run.make_step(ids) for run in runs), lease=LEASE_MICROS
        )
        begun, used = time.perf_counter(), time.process_time()
        outcomes = await log.append(batch)
        if number >= WARM:
            spent.append(time.perf_counter() - begun)
            client += time.process_time() - used
        for run, outcome in zip(runs, outcomes, strict=True):
            assert isinstance(outcome, Appended), outcome
            run.seq = outcome.last_seq
        begun = time.perf_counter()
        await commit()
        commits.append(time.perf_counter() - begun)
    spent.sort()
    commits.sort()
    done = rounds * together
    return {
        "together": together,
        "p50_ms": round(spent[len(spent) // 2] * 1000, 3),
        "p99_ms": round(spent[int(len(spent) * 0.99)] * 1000, 3),
        "best_ms": round(spent[0] * 1000, 3),
        "commit_ms": round(commits[len(commits) // 2] * 1000, 3),
        "best_commit_ms": round(commits[0] * 1000, 3),
        "steps_s": round(done / sum(spent)),
        "client_us": round(client / done * 1e6, 1),
        "steps": done + WARM * together,
    }


async def read_wal_bytes(database: Database) -> int:
    async with database.main.open_write_transaction() as session:
        position: int = await session.fetchval("select pg_current_wal_lsn() - '0/0'::pg_lsn")
        return int(position)


async def run_all(dsn: str, steps: int) -> dict[str, Any]:
    connection = await connect(dsn)
    begun = time.perf_counter()
    shards = await migrate(connection)
    created = time.perf_counter() - begun
    await connection.execute(
        "create table if not exists public.one_row (id bigserial primary key, body text)"
    )

    async def commit_row() -> None:
        await connection.execute("insert into public.one_row (body) values ($1)", "x" * 200)

    async with Database(dsn, main_size=2, background_size=1) as database:
        leases = LeasesPostgres(database)
        runtime = await leases.register("bench", None, 3_600_000_000)
        epochs = {each.shard: each.epoch for each in await leases.claim(runtime.runtime_id, shards)}
        log, ids = LogPostgres(database, shards), Snowflakes(runtime.node)
        found = []
        for together in (1, 8, 64):
            before = await read_wal_bytes(database)
            row = await measure_appends(log, epochs, ids, together, steps, commit_row)
            found.append(
                {**row, "wal_bytes": (await read_wal_bytes(database) - before) // row["steps"]}
            )
        await leases.close()
    await connection.execute("drop table public.one_row")
    await connection.close()
    return {"schema_ms": round(created * 1000), "append": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--steps", type=int, default=4000)
    options = parser.parse_args()
    with ExitStack() as stack:
        dsn = os.environ.get("NOETL_DB_URL")
        if dsn is None:
            home = stack.enter_context(tempfile.TemporaryDirectory(prefix="noetl-bench-"))
            embedded = EmbeddedPostgres(Path(home))
            stack.callback(embedded.stop_postgres)
            dsn = embedded.ensure_postgres().control
        found = asyncio.run(run_all(dsn, options.steps))
    if options.json:
        print(json.dumps(found))
        return
    print(f"schema made in {found['schema_ms']} ms")
    for row in found["append"]:
        print(
            f"{row['together']:3} together: {row['p50_ms']:.2f} ms (best {row['best_ms']:.2f}, p99 {row['p99_ms']:.2f}),"
            f" {row['steps_s']} steps/s; a commit {row['commit_ms']:.2f} ms (best {row['best_commit_ms']:.2f}):"
            f" {row['p50_ms'] / row['commit_ms']:.1f} commits;"
            f" {row['client_us']} us client, {row['wal_bytes']} bytes of WAL a step"
        )


if __name__ == "__main__":
    main()

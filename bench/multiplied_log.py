"""A log of a million finished executions, made in minutes.

Some hundred executions are played by the engine (`grown_log.py`); all others are copies of them, made by SQL in order of time.
A copy has an id, a shard, sequence numbers, times and references of its own. Only what SQL does not look into is taken over as it
is: the packed events and the state still name the execution that was played. Results are marked as the sweeper would have done.
"""

import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg

from grown_log import PlayedExecution, grow_log, make_kinds
from noetl.model.ids import ExecutionId, Micros, Snowflakes, get_creation_time, shard_of

TEMPLATES = 300
SHORTEST_CHAIN = 3  # steps
BATCH_EXECUTIONS = 10_000
NODE = 9  # in the ids of copies
HOUR, DAY = 3_600_000_000, 86_400_000_000
SPREAD = 30 * DAY
NEWEST_AGE = 2 * DAY  # older than the grace of results: the sweeper has seen every execution

MAKE_TEMPLATES = """
create temp table template as
select row_number() over (order by x.execution_id) - 1 as template, x.*,
       (select min(p.last_seq - p.count) from noetl.event_part p where p.execution_id = x.execution_id) as after_seq
from noetl.execution x;
create temp table template_part as
select t.template, p.last_seq - t.after_seq as nth, p.epoch, p.tenant, p.count, p.ends, p.events
from template t join noetl.event_part p on p.execution_id = t.execution_id;
create temp table template_ref as
select t.template, row_number() over (partition by t.template order by r.part_seq, r.ref_id) as number,
       r.part_seq - t.after_seq as nth, t.execution_id as played, r.*
from template t join noetl.result_ref r on r.execution_id = t.execution_id;
create temp table template_workload as
select t.template, w.* from template t join noetl.workload w on w.execution_id = t.execution_id;
create temp table copied (number int primary key, template int, execution_id bigint, shard int, after_seq bigint, later bigint);
"""
# Ids of references are hashes in a real log too. `1 << 61`: kept for ever, as `noetl.judge` writes it.
COPIES = (
    """
    insert into noetl.event_part (execution_id, last_seq, epoch, tenant, count, shard, ends, events)
    select c.execution_id, c.after_seq + t.nth, t.epoch, t.tenant, t.count, c.shard, t.ends, t.events
    from copied c join template_part t using (template)
    where c.number >= %(first)s and c.number < %(end)s order by c.number, t.nth
    """,
    """
    insert into noetl.execution (execution_id, shard, tenant, path, status, last_seq, started_at, updated_at, ended_at, error,
                                 steps, recovered, state, state_hash, judge_at)
    select c.execution_id, c.shard, t.tenant, t.path, t.status, c.after_seq + t.last_seq - t.after_seq, t.started_at + c.later,
           t.updated_at + c.later, t.ended_at + c.later, t.error, t.steps, t.recovered, t.state, t.state_hash,
           (1::bigint << 61) + t.ended_at + c.later
    from copied c join template t using (template)
    where c.number >= %(first)s and c.number < %(end)s order by c.number
    """,
    """
    insert into noetl.workload (execution_id, tenant, playbook, data)
    select c.execution_id, t.tenant, t.playbook, t.data
    from copied c join template_workload t using (template)
    where c.number >= %(first)s and c.number < %(end)s order by c.number
    """,
    """
    insert into noetl.result_ref (ref_id, tenant, execution_id, tier, uri, bytes, format, sha256, inputs, payload, at, part_seq)
    select hashint8extended(c.execution_id, t.number) & 9223372036854775807, t.tenant, c.execution_id, t.tier,
           replace(t.uri, t.played::text, c.execution_id::text), t.bytes, t.format, t.sha256,
           case when t.number > 1 then array[hashint8extended(c.execution_id, t.number - 1) & 9223372036854775807] end,
           t.payload, t.at + c.later * interval '1 microsecond', c.after_seq + t.nth
    from copied c join template_ref t using (template)
    where c.number >= %(first)s and c.number < %(end)s order by c.number, t.number
    """,
)
SHARDS = "select shard_id, last_seq from noetl.execution_shard order by shard_id"
PLAYED = "select execution_id::text, last_seq - after_seq from template order by template"
SIZE = "select pg_database_size(current_database())"
TABLES = "event_part, noetl.execution, noetl.workload, noetl.result_ref, noetl.execution_shard, noetl.checkpoint"


@dataclass(frozen=True)
class GrownLog:
    executions: int
    events: int
    database_bytes: int
    made_s: float


def choose_length(events_each: int) -> int:
    """The steps of a chain with which executions have so many events, in the mean, or a few more."""
    length = SHORTEST_CHAIN
    while statistics.mean(count_events(length)) < events_each:
        length += 1
    return length


def count_events(length: int) -> list[int]:
    """Of an execution of each kind."""
    return [len(PlayedExecution(kind, ExecutionId("1"), DAY).events) for kind in make_kinds(length)]


def make_grown_log(dsn: str, executions: int, events_each: int) -> GrownLog:
    """Fill a migrated, empty database."""
    begun = time.perf_counter()
    last = time.time_ns() // 1_000 - NEWEST_AGE
    first = last - SPREAD
    played = min(TEMPLATES, executions)
    events = grow_log(dsn, played, first - HOUR, first, choose_length(events_each))
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("set synchronous_commit = off")
        connection.execute("set work_mem = '256MB'")
        if executions > played:
            events = multiply_log(connection, executions - played, first, last)
        connection.execute(f"vacuum (analyze) noetl.{TABLES}")
        (size,) = connection.execute(SIZE).fetchone() or (0,)
    return GrownLog(executions, events, size, round(time.perf_counter() - begun, 1))


def multiply_log(
    connection: "psycopg.Connection[Any]", copies: int, first: Micros, last: Micros
) -> int:
    """Copy what is in the log until there are so many more. Returns the number of all events."""
    connection.execute(MAKE_TEMPLATES)
    seqs = dict(connection.execute(SHARDS).fetchall())
    templates = connection.execute(PLAYED).fetchall()
    table = "copied (number, template, execution_id, shard, after_seq, later)"
    with connection.cursor().copy(f"copy {table} from stdin") as into:
        for row in plan_copies(templates, copies, first, last, seqs):
            into.write_row(row)
    connection.execute("analyze template, template_part, template_ref, template_workload, copied")
    copy_rows(connection, copies)
    for shard, seq in seqs.items():
        given = (seq, shard)
        connection.execute("update noetl.checkpoint set seq = %s where shard_id = %s", given)
        connection.execute(
            "update noetl.execution_shard set last_seq = %s where shard_id = %s", given
        )
    return sum(seqs.values())


def plan_copies(
    templates: list[tuple[str, int]], copies: int, first: Micros, last: Micros, seqs: dict[int, int]
) -> Iterator[tuple[int, int, str, int, int, Micros]]:
    """A row for each copy. `seqs` are the last sequence numbers of the shards: they are moved on."""
    ids = Snowflakes(NODE)
    for number in range(copies):
        at = first + (last - first) * number // copies
        template = number % len(templates)
        played_id, events = templates[template]
        execution_id = ids.draw_id(at)
        shard = shard_of(execution_id, len(seqs))
        later = get_creation_time(execution_id) - get_creation_time(played_id)
        yield number, template, execution_id, shard, seqs[shard], later
        seqs[shard] += events


def copy_rows(connection: "psycopg.Connection[Any]", copies: int) -> None:
    """In the order of time, so that tables and indexes lie as if the log had grown. The events were checked when they were
    played: their check is left out for the copies."""
    (check,) = connection.execute(
        "select pg_get_functiondef('noetl.holds_no_payload(json)'::regprocedure)"
    ).fetchone() or ("",)
    connection.execute(
        "create or replace function noetl.holds_no_payload(events json) returns boolean"
        " language sql immutable parallel safe return true"
    )
    for first in range(0, copies, BATCH_EXECUTIONS):
        end = min(first + BATCH_EXECUTIONS, copies)
        for statement in COPIES:
            connection.execute(statement, {"first": first, "end": end})
        print(f"\r{end} of {copies} executions copied", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    connection.execute(check)

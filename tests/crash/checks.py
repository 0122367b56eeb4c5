"""What must be true of a database once everything in it has ended, also if processes died. Read from its tables and its log."""

from collections import defaultdict
from collections.abc import Collection

import psycopg

from noetl.client.http import HttpClient
from noetl.log.events.port import RecordedEvent
from noetl.model import events as e
from noetl.model.ids import ExecutionId
from tests.projection import assert_projection_equals_fold
from tests.simulation.oracle import ENDS, TERMINAL, references_of

NOTHING = {
    "a shard whose numbers have a gap": """
        select s.shard_id, s.last_seq, count(e.seq), max(e.seq) from noetl.execution_shard s
        left join noetl.event e on e.shard = s.shard_id group by 1, 2
        having s.last_seq <> count(e.seq) or s.last_seq <> coalesce(max(e.seq), 0)""",
    "an event of an owner after one of its successor": """
        select * from (select shard, seq, epoch, max(epoch) over (partition by shard order by seq) as seen
                       from noetl.event) x where epoch < seen""",
    "a command that ended twice": """
        select command_id, count(*) from noetl.event
        where event_type in ('command.completed', 'command.failed', 'command.dead', 'command.cancelled')
        group by 1 having count(*) > 1""",
    "an event that is recorded twice": """
        select execution_id, dedup_key, count(*) from noetl.event group by 1, 2 having count(*) > 1""",
    "a command that is open": """
        select command_id, step, status, attempt from noetl.command where status not in ('done', 'dead', 'cancelled')""",
    "a message that nobody took": "select execution_id, dedup_key from noetl.inbox",
    "a timer that is left": "select * from noetl.timer",
    "an execution that ended not once": """
        select execution_id, count(*) filter (where dedup_key = 'terminal') from noetl.event
        group by 1 having count(*) filter (where dedup_key = 'terminal') <> 1""",
    "a payload in the log": "select seq, result from noetl.event where octet_length(result::text) > 8192",
}


async def check(dsn: str, client: HttpClient, executions: Collection[ExecutionId]) -> None:
    """`executions` are looked at event by event, and so are their children; the tables as a whole."""
    await assert_projection_equals_fold(dsn)
    with psycopg.connect(dsn) as connection:
        for what, query in NOTHING.items():
            assert connection.execute(query).fetchall() == [], what
        parents = list(map(int, executions))
        children = connection.execute(
            "select execution_id from noetl.execution where parent = any (%s)", [parents]
        )
        everyone = [*executions, *(ExecutionId(str(row[0])) for row in children)]
    for execution_id in everyone:
        recorded = await all_events(client, execution_id)
        check_story(recorded)
        for reference in {
            each.uri: each for row in recorded for each in references_of(row.event)
        }.values():
            await client.resolve(reference)
        assert (await client.get_execution(execution_id))["status"] == "completed"


async def all_events(client: HttpClient, execution_id: ExecutionId) -> list[RecordedEvent]:
    found: list[RecordedEvent] = []
    while page := await client.list_events(execution_id, found[-1].seq if found else 0):
        found += page
    return found


def check_story(recorded: list[RecordedEvent]) -> None:
    """One beginning, one end, each command ended once, each item of a loop accepted once, each loop closed once."""
    events = [row.event for row in recorded]
    assert isinstance(events[0], e.PlaybookInitialized)
    assert [isinstance(event, TERMINAL) for event in events] == [False] * (len(events) - 1) + [True]
    issued = [event.command_id for event in events if isinstance(event, e.CommandIssued)]
    ended = [event.command_id for event in events if isinstance(event, ENDS)]
    assert sorted(issued) == sorted(ended)
    check_loops(events)


def check_loops(events: list[e.Event]) -> None:
    sizes = {
        event.activation: event.collection.size
        for event in events
        if isinstance(event, e.LoopStarted)
    }
    done = [event.activation for event in events if isinstance(event, e.LoopDone)]
    assert sorted(done) == sorted(sizes)
    accepted: dict[str, list[int]] = defaultdict(list)
    alone: dict[str, int] = defaultdict(int)  # items that were a command of their own
    for event in events:
        if isinstance(event, e.FrameClaimed):
            sizes[event.activation] += event.size
        if isinstance(event, e.CommandCompleted | e.CommandProgress) and event.activation in sizes:
            if event.items is None:
                alone[event.activation] += 1
            else:
                items = event.items
                accepted[event.activation] += range(
                    items.first, items.first + items.ok + items.failed + items.skipped
                )
    for activation, size in sizes.items():
        indexes = accepted[activation]
        assert len(indexes) == len(set(indexes)), f"accepted twice: {sorted(indexes)}"
        assert len(indexes) + alone[activation] == size

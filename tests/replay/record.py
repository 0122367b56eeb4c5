"""Records logs for `test_recorded_logs.py`, as Postgres stores their events: every playbook of the end-to-end corpus, and
executions of the simulator, which are paused, cancelled and retried and lose their workers.

    uv run python -m tests.replay.record

It writes `logs/VERSION.jsonl.xz`, where VERSION is the version in pyproject.toml. Record once, when a version is released, and
keep the file: later versions must fold the same events to the same state.
"""

import asyncio
import lzma
import os
import tempfile
import tomllib
from pathlib import Path

import asyncpg
import msgspec
import uvloop

from noetl.engine.state import Execution, encode_execution
from noetl.engine.summary import get_shown_status, hash_state
from noetl.log.events.event_halves import split_event
from noetl.model import codec
from noetl.model.events import Event
from noetl.model.ids import ExecutionId
from tests.api.process import run_api
from tests.e2e.corpus import list_cases, play
from tests.postgres import server
from tests.replay.recorded import LOGS, RecordedLog, StoredEvent
from tests.simulation.faulty import drive
from tests.simulation.world import History, SimWorld, run

ROOT = Path(__file__).parents[2]
MAX_EVENTS = 2_000  # events of an execution that is recorded
SIMULATED_SEEDS = 60
EVENTS = """
select execution_id, event_type, meta::text as meta, result::text as result
from noetl.event order by execution_id, seq
"""
EXECUTIONS = """
select execution_id, path, status, recovered, state_hash from noetl.execution where state_hash is not null
"""


def main() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    target = LOGS / f"{version}.jsonl.xz"
    if target.exists():
        raise SystemExit(f"{target.name} exists: the logs of a released version do not change")
    with server().database() as own, server().database() as tables, run_api() as api:
        os.environ["NOETL_DB_URL"] = own
        chosen = list_cases()
        for case in chosen:
            os.environ.update(case.given.get("env", {}))
        with (
            tempfile.TemporaryDirectory(prefix="noetl-record-") as home,
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            os.environ["NOETL_HOME"] = home
            runner.run(play(chosen, tables, api.url))
            logs = runner.run(dump_logs(own))
    logs += simulate_logs()
    LOGS.mkdir(exist_ok=True)
    lines = b"\n".join(msgspec.json.encode(log) for log in logs)
    target.write_bytes(lzma.compress(lines, preset=9))
    events = sum(len(log.events) for log in logs)
    print(f"{target.name}: {len(logs)} executions, {events} events, {target.stat().st_size} bytes")


async def dump_logs(dsn: str) -> list[RecordedLog]:
    """The logs of all executions that have ended, in the order of their paths."""
    connection = await asyncpg.connect(dsn)
    try:
        events: dict[int, list[StoredEvent]] = {}
        for row in await connection.fetch(EVENTS):
            stored = StoredEvent(row["meta"], row["result"])
            events.setdefault(row["execution_id"], []).append(stored)
        logs: list[RecordedLog] = []
        for row in await connection.fetch(EXECUTIONS):
            if len(events[row["execution_id"]]) > MAX_EVENTS:
                continue
            log = RecordedLog(
                path=row["path"],
                execution_id=str(row["execution_id"]),
                status=row["status"],
                recovered=row["recovered"],
                state_hash=row["state_hash"],
                events=tuple(events[row["execution_id"]]),
            )
            logs.append(log)
    finally:
        await connection.close()
    return sorted(logs, key=lambda log: (log.path, log.execution_id))


def simulate_logs() -> list[RecordedLog]:
    """The logs of all executions of the first seeds."""
    logs: list[RecordedLog] = []

    def look_at(world: SimWorld) -> None:
        for execution_id, state in world.oracle.states.items():
            events = drive(world.stores.log.read_events(ExecutionId(execution_id)))
            logs.append(record_state(state, [recorded.event for recorded in events]))

    for seed in range(1, SIMULATED_SEEDS + 1):
        run(History(seed), look_at)
    return logs


def record_state(state: Execution, events: list[Event]) -> RecordedLog:
    stored: list[StoredEvent] = []
    for event in events:
        meta, result = split_event(event, codec.encode(event))
        stored.append(StoredEvent(meta, result))
    return RecordedLog(
        path=state.path,
        execution_id=state.execution_id,
        status=get_shown_status(state),
        recovered=state.recovered,
        state_hash=hash_state(encode_execution(state)),
        events=tuple(stored),
    )


if __name__ == "__main__":
    main()

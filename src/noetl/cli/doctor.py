"""`noetl doctor`: finds problems of an installation and says what to do about each."""

import asyncio
import shutil
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Literal

import typer

from noetl.cli.client import Client, Row, connect
from noetl.cli.executions import AsJson
from noetl.cli.output import as_called, coloured, say, say_json
from noetl.model.ids import ExecutionId

if TYPE_CHECKING:
    from noetl.settings import HomeSettings

QUIET = timedelta(minutes=1)  # a running execution without an event for this long may be stuck
LATE = timedelta(seconds=2)  # after the end of a lease; servers check leases twice a second
BEHIND_MS = 5_000  # lag of a projection
LITTLE = 1 << 30  # bytes free on the disk
NAMED = 5  # executions named in a finding
PAGE = 500  # executions
ALIVE = ("running", "cancelling", "pending")


@dataclass(frozen=True, slots=True)
class CheckResult:
    check: str
    status: Literal["ok", "warn", "error"]
    message: str
    do: str | None = None


def register(app: typer.Typer) -> None:
    app.command()(doctor)


def doctor(as_json: AsJson = False) -> None:
    """Look for what is stuck, lost or behind, and say what to do about it.

    Looks at the server of NOETL_SERVER_URL, else at the database of this machine. Changes nothing.

    Exit code: 0 all is well, 1 something is not.
    """
    findings = asyncio.run(_examine())
    if as_json:
        say_json([asdict(finding) for finding in findings])
    else:
        _print(findings)
    raise typer.Exit(int(any(finding.status == "error" for finding in findings)))


def _print(findings: list[CheckResult]) -> None:
    for finding in findings:
        status = coloured(finding.status, f"{finding.status:<5}")
        say(f"{status}  {finding.check:<10}  {finding.message}")
        if finding.do:
            say(f"                   → {as_called(finding.do)}")


async def _examine() -> list[CheckResult]:
    from noetl.settings import HomeSettings, read

    place = read(HomeSettings)
    async with connect("read") as client:
        findings = [CheckResult("reach", "ok", f"{_asked(place)} answers")]
        findings += _disk(place)
        findings += await _storage(place)
        findings += await _history(client)
        findings += await _executions(client)
        findings += await _commands(client)
        findings += await _lag(client)
    return findings


def _asked(place: "HomeSettings") -> str:
    """The server or database that the checks ask."""
    from noetl.settings import Store, read

    if place.servers:
        return place.servers[0]
    if read(Store).db_url is not None:
        return "the database of NOETL_DB_URL"
    return f"the database of {place.where}"


def _disk(place: "HomeSettings") -> list[CheckResult]:
    if not place.where.exists():
        return []
    free = shutil.disk_usage(place.where).free
    message = f"{free >> 20} MB free at {place.where}"
    if free > LITTLE:
        return [CheckResult("disk", "ok", message)]
    return [
        CheckResult("disk", "error", message, "free some space, or move NOETL_HOME to another disk")
    ]


async def _storage(place: "HomeSettings") -> list[CheckResult]:
    """Check that this machine reaches the store of large results that its settings name."""
    from noetl.model.errors import NoetlError
    from noetl.settings import Storage, read
    from noetl.worker.stores import tier

    storage = read(Storage)
    if storage.storage_cloud_tier is None:
        return []
    try:
        async for _ in tier(place.where, storage).listed():
            break
    except NoetlError as error:
        return [
            CheckResult(
                "storage", "error", str(error), error.hint or "docs/storage.md has examples"
            )
        ]
    return [CheckResult("storage", "ok", f"{storage.storage_cloud_tier} answers")]


async def _history(client: Client) -> list[CheckResult]:
    """Check that the events which compaction moved to the lake can be read."""
    problem = await client.history()
    if problem == "ok":
        return [CheckResult("history", "ok", "compacted history can be read")]
    do = "let this machine reach the lake where it was when `noetl job compact` ran: NOETL_STORAGE_LAKE (docs/jobs.md)"
    return [CheckResult("history", "error", problem, do)]


async def _executions(client: Client) -> list[CheckResult]:
    """Check for executions that are stuck or quarantined."""
    alive: list[Row] = []
    for status in ALIVE:
        alive += await _all_executions(client, status)
    stuck: list[Row] = []
    for row in alive:
        if _since(row["updated_at"]) <= QUIET:
            continue
        commands = await client.queue(execution_id=ExecutionId(row["execution_id"]))
        if not commands:
            stuck.append(row)
    aside = await _all_executions(client, "quarantined")
    return [
        _finding(
            "stuck",
            stuck,
            "execution(s) run, and nothing has happened for a minute",
            "noetl exec get {}, then cancel",
        ),
        _finding(
            "aside",
            aside,
            "execution(s) set aside because their log cannot be folded",
            "noetl exec events {}, then release",
        ),
    ]


async def _all_executions(client: Client, status: str) -> list[Row]:
    rows: list[Row] = []
    page = await client.executions(status=status, limit=PAGE)
    while page:
        rows += page
        page = await client.executions(status=status, limit=PAGE, before=page[-1]["execution_id"])
    return rows


async def _commands(client: Client) -> list[CheckResult]:
    """Check for commands that no worker can take, expired leases, and dead commands."""
    leased = await client.queue("leased")
    expired = [row for row in leased if _since(row["lease_until"]) > LATE]
    dead = await _dead(client)
    return [
        await _waiting(client),
        _finding(
            "leases",
            expired,
            "command(s) whose lease has run out: no server looks after them",
            "noetl server start, or noetl run anything: it takes them up",
        ),
        _finding(
            "dead",
            dead,
            "command(s) that killed their workers five times",
            "noetl exec get {}, then retry",
        ),
    ]


async def _waiting(client: Client) -> CheckResult:
    """Check that every queued command has a worker that serves its pool."""
    workers = await client.workers()
    served: set[str] = set()
    for worker in workers:
        served.update(worker["pools"])
    queued = await client.queue("queued")
    homeless = [row for row in queued if row["pool"] not in served]
    if not homeless:
        return CheckResult("queue", "ok", f"{len(queued)} queued, {len(workers)} worker(s)")
    pools = ", ".join(sorted({row["pool"] for row in homeless}))
    message = f"command(s) wait for a worker of {pools}"
    return _finding("queue", homeless, message, f"noetl worker start --pool {pools}", "warn")


async def _dead(client: Client) -> list[Row]:
    """Dead commands of executions that have not ended. One that has ended reports its failure."""
    rows = await client.queue("dead")
    ids = dict.fromkeys(ExecutionId(row["execution_id"]) for row in rows)
    alive: set[str] = set()
    for execution_id in ids:
        execution = await client.execution(execution_id)
        if execution["ended_at"] is None:
            alive.add(execution_id)
    return [row for row in rows if row["execution_id"] in alive]


async def _lag(client: Client) -> list[CheckResult]:
    """Check that projections are up to date."""
    lag_ms = await client.lag()
    behind = [ms for ms in lag_ms.values() if ms > BEHIND_MS]
    if not behind:
        return [CheckResult("lag", "ok", "what is shown is up to date")]
    worst = max(behind) / 1000
    message = f"{len(behind)} shard(s) are not projected, the oldest event for {worst:.0f} s"
    do = "noetl server start: its projector takes them up; else look at its log"
    return [CheckResult("lag", "error", message, do)]


def _finding(
    check: str,
    rows: list[Row],
    message: str,
    do: str,
    status: Literal["warn", "error"] = "error",
) -> CheckResult:
    """The result of a check that finds `rows`: it is good if there are none."""
    if not rows:
        return CheckResult(check, "ok", "none")
    ids = list(dict.fromkeys(row["execution_id"] for row in rows))
    names = ", ".join(ids[:NAMED])
    if len(ids) > NAMED:
        names += " …"
    return CheckResult(check, status, f"{len(rows)} {message} ({names})", do.format(ids[0]))


def _since(at: str | None) -> timedelta:
    """The time since a moment. Zero if there is none."""
    if not at:
        return timedelta(0)
    return datetime.now(UTC) - datetime.fromisoformat(at)

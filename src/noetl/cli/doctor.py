"""`noetl doctor`: what is not as it should be, and what to do about each."""

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

QUIET = timedelta(
    minutes=1
)  # a running execution that nothing happened to for so long is worth a look
LATE = timedelta(seconds=2)  # past its end: whoever looks after leases does so twice a second
BEHIND_MS = 5_000
LITTLE = 1 << 30  # bytes free on the disk
NAMED = 5
PAGE = 500
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
        say(
            f"{coloured(finding.status, f'{finding.status:<5}')}  {finding.check:<10}  {finding.message}"
        )
        if finding.do:
            say(f"                   → {as_called(finding.do)}")


async def _examine() -> list[CheckResult]:
    from noetl.settings import HomeSettings, read

    place = read(HomeSettings)
    async with connect("read") as client:
        found = [
            CheckResult("reach", "ok", f"{_asked(place)} answers"),
            *_disk(place),
            *await _storage(place),
        ]
        found += await _history(client)
        found += await _executions(client)
        found += await _commands(client)
        found += await _lag(client)
    return found


def _asked(place: "HomeSettings") -> str:
    from noetl.settings import Store, read

    if place.servers:
        return place.servers[0]
    return (
        "the database of NOETL_DB_URL"
        if read(Store).db_url is not None
        else f"the database of {place.where}"
    )


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
    """Whether this machine reaches the store of large results that its settings name."""
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
    """Whether whoever answers can read the events that compaction has moved to the lake."""
    found = await client.history()
    if found == "ok":
        return [CheckResult("history", "ok", "compacted history can be read")]
    do = "let this machine reach the lake where it was when `noetl job compact` ran: NOETL_STORAGE_LAKE (docs/jobs.md)"
    return [CheckResult("history", "error", found, do)]


async def _executions(client: Client) -> list[CheckResult]:
    alive = [row for status in ALIVE for row in await _all_executions(client, status)]
    quiet = [row for row in alive if _since(row["updated_at"]) > QUIET]
    stuck = [
        row
        for row in quiet
        if not await client.queue(execution_id=ExecutionId(row["execution_id"]))
    ]
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
    workers = await client.workers()
    pools = {pool for worker in workers for pool in worker["pools"]}
    queued = await client.queue("queued")
    homeless = [row for row in queued if row["pool"] not in pools]
    expired = [
        row
        for row in await client.queue("leased")
        if row["lease_until"] and _since(row["lease_until"]) > LATE
    ]
    dead = await _dead(client)
    named = ", ".join(sorted({row["pool"] for row in homeless}))
    waiting = (
        f"command(s) wait for a worker of {named}"
        if homeless
        else f"{len(queued)} queued, {len(workers)} worker(s)"
    )
    return [
        _finding("queue", homeless, waiting, f"noetl worker start --pool {named or 'cpu'}", "warn"),
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


async def _dead(client: Client) -> list[Row]:
    """Of executions that go on; once one has ended it says itself how."""
    rows = await client.queue("dead")
    ids = dict.fromkeys(ExecutionId(row["execution_id"]) for row in rows)
    alive = {each for each in ids if (await client.execution(each))["ended_at"] is None}
    return [row for row in rows if row["execution_id"] in alive]


async def _lag(client: Client) -> list[CheckResult]:
    behind = {shard: ms for shard, ms in (await client.lag()).items() if ms > BEHIND_MS}
    if not behind:
        return [CheckResult("lag", "ok", "what is shown is up to date")]
    worst = max(behind.values()) / 1000
    message = f"{len(behind)} shard(s) are not projected, the oldest event for {worst:.0f} s"
    return [
        CheckResult(
            "lag",
            "error",
            message,
            "noetl server start: its projector takes them up; else look at its log",
        )
    ]


def _finding(
    check: str, rows: list[Row], message: str, do: str, status: Literal["warn", "error"] = "error"
) -> CheckResult:
    if not rows:
        return CheckResult(check, "ok", message if check == "queue" else "none")
    ids = list(dict.fromkeys(row["execution_id"] for row in rows))
    named = ", ".join(ids[:NAMED]) + (" …" if len(ids) > NAMED else "")
    return CheckResult(check, status, f"{len(rows)} {message} ({named})", do.format(ids[0]))


def _since(at: str | None) -> timedelta:
    return datetime.now(UTC) - datetime.fromisoformat(at) if at else timedelta(0)

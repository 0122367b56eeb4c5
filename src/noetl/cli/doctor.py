"""`noetl doctor`: finds problems of an installation and says what to do about each."""

import asyncio
import shutil
import stat
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import typer

from noetl.cli.client import open_client
from noetl.cli.options import AsJson
from noetl.cli.output import adapt_commands, add_colour, say, say_json
from noetl.cli.pools import find_unserved_pools, make_start_command
from noetl.client.rows import Row, RowClient
from noetl.model.errors import InvalidInput, NoetlError, NotPermitted, Unavailable
from noetl.model.ids import ExecutionId
from noetl.runtime.running_servers import find_server_address
from noetl.runtime.stores import open_tier
from noetl.runtime.tls import measure_days_left
from noetl.runtime.token_files import LOCAL_ROLES, read_token_file
from noetl.server.http.loopback import is_loopback
from noetl.settings import (
    DatabaseSettings,
    HomeSettings,
    ListenSettings,
    StorageSettings,
    read_settings,
)

# A running execution without an event for this long may be stuck.
STUCK_AFTER = timedelta(minutes=1)
LEASE_GRACE = timedelta(seconds=2)  # after the end of a lease; servers check leases twice a second
MAX_LAG_MS = 5_000  # lag of a projection
MIN_FREE_BYTES = 1 << 30  # bytes free on the disk
OTHERS_READ, OTHERS_CHANGE, OTHERS_ENTER = 0o044, 0o022, 0o011  # bits of a mode
MIN_CERTIFICATE_DAYS = 14
EXPIRES_SOON = timedelta(days=7)  # of a token
MAX_NAMED_FILES = 5  # entries of the home named in a finding
MAX_NAMED_EXECUTIONS = 5  # executions named in a finding
DOCTOR_PAGE_EXECUTIONS = 500  # executions
UNFINISHED_STATUSES = ("running", "cancelling", "pending")
DEFAULT_PORT = 8082
SERVER_COMMANDS = "noetl dev (or noetl server start with noetl worker start)"


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

    Looks at the server of NOETL_SERVER_URL, else at the database of this machine. Changes nothing. If nothing answers, it says
    what to start.

    Exit code: 0 everything is well, 1 something is not.
    """
    findings = asyncio.run(_run_checks())
    if as_json:
        say_json([asdict(finding) for finding in findings])
    else:
        _print_check_results(findings)
    raise typer.Exit(int(any(finding.status == "error" for finding in findings)))


def _print_check_results(findings: list[CheckResult]) -> None:
    for finding in findings:
        status = add_colour(finding.status, f"{finding.status:<5}")
        say(f"{status}  {finding.check:<11}  {finding.message}")
        if finding.do:
            say(f"                   → {adapt_commands(finding.do)}")


async def _run_checks() -> list[CheckResult]:
    """Run all checks, or as many as there are answers for."""
    place = read_settings(HomeSettings)
    findings: list[CheckResult] = []
    try:
        async with open_client("read") as client:
            await client.list_workers()
            findings.append(CheckResult("reach", "ok", f"{_describe_source(place)} answers"))
            findings += _check_disk(place)
            findings += _check_modes(place)
            findings += check_transport(place, read_settings(ListenSettings))
            findings += await _check_tokens(client, place)
            findings += await _check_storage(place)
            findings += await _check_lake_history(client)
            unfinished = await _list_unfinished_executions(client)
            has_server = await client.has_running_server()
            if not place.server_urls:
                findings.append(_check_server(has_server, unfinished))
            findings += await _check_executions(client, unfinished)
            findings += await _check_commands(client, has_server)
            findings += await _check_projection_lag(client)
    except Unavailable as error:
        findings.append(CheckResult("reach", "error", str(error), _suggest_start(place, error)))
    return findings


def _suggest_start(place: HomeSettings, error: Unavailable) -> str | None:
    """What to start if nothing answers."""
    if not place.server_urls:
        return error.hint
    port = urlsplit(place.server_urls[0]).port
    option = "" if port in (None, DEFAULT_PORT) else f" --port {port}"
    server = f"noetl server start{option} with noetl worker start, or noetl dev{option}"
    return f"start it: {server}; without NOETL_SERVER_URL you look at {place.home_path}"


def _check_server(has_server: bool, unfinished: list[Row]) -> CheckResult:
    """Check that executions of this home which have not ended have a server."""
    if has_server:
        address = find_server_address() or "a command such as noetl run"
        return CheckResult("server", "ok", f"{address} runs what there is")
    if not unfinished:
        return CheckResult("server", "ok", "none runs, and nothing needs one")
    return _make_check_result(
        "server",
        unfinished,
        "execution(s) have not ended, and no server runs",
        SERVER_COMMANDS + " goes on with them; noetl exec cancel {} ends one",
        "warn",
    )


def _describe_source(place: HomeSettings) -> str:
    """The server or database that the checks ask."""
    if place.server_urls:
        return place.server_urls[0]
    if read_settings(DatabaseSettings).db_url is not None:
        return "the database of NOETL_DB_URL"
    return f"the database of {place.home_path}"


def _check_disk(place: HomeSettings) -> list[CheckResult]:
    if not place.home_path.exists():
        return []
    free = shutil.disk_usage(place.home_path).free
    message = f"{free >> 20} MB free at {place.home_path}"
    if free > MIN_FREE_BYTES:
        return [CheckResult("disk", "ok", message)]
    return [
        CheckResult("disk", "error", message, "free some space, or move NOETL_HOME to another disk")
    ]


def _check_modes(place: HomeSettings) -> list[CheckResult]:
    """Check that other users of this machine read nothing of the home."""
    home = place.home_path
    if not home.exists():
        return []
    if not stat.S_IMODE(home.stat().st_mode) & OTHERS_ENTER:
        return [CheckResult("modes", "ok", f"only its user can enter {home}")]
    names = ["."] if stat.S_IMODE(home.stat().st_mode) & OTHERS_CHANGE else []
    names += [entry.name for entry in sorted(home.iterdir()) if _is_open_to_others(entry)]
    if not names:
        return [CheckResult("modes", "ok", f"others can enter {home}, and read nothing in it")]
    shown = ", ".join(names[:MAX_NAMED_FILES]) + (" …" if len(names) > MAX_NAMED_FILES else "")
    message = f"other users of this machine can read or change what is in {home}: {shown}"
    return [CheckResult("modes", "error", message, f"chmod -R go-rwx {home}")]


def _is_open_to_others(path: Path) -> bool:
    """Whether another user can read or change this entry of the home."""
    try:
        mode = stat.S_IMODE(path.lstat().st_mode)
    except OSError:  # gone since
        return False
    if path.is_symlink():
        return False
    return bool(mode & (OTHERS_READ | OTHERS_CHANGE))


def check_transport(place: HomeSettings, listen: ListenSettings) -> list[CheckResult]:
    """Check that others on the network cannot read what is sent to and from servers."""
    open_urls = [url for url in place.server_urls if _is_readable_on_the_way(url)]
    if open_urls:
        message = f"{', '.join(open_urls)}: passwords, tokens and data can be read on the way"
        do = "use https: NOETL_TLS_CERT and NOETL_TLS_KEY of the server, or a proxy with TLS before it"
        return [CheckResult("transport", "warn", message, do)]
    if listen.tls_cert is not None:
        return [_check_certificate(listen.tls_cert)]
    if not is_loopback(listen.host):
        message = f"NOETL_HOST={listen.host} without TLS: passwords, tokens and data can be read on the way"
        do = "set NOETL_TLS_CERT and NOETL_TLS_KEY, or listen on 127.0.0.1 behind a proxy with TLS"
        return [CheckResult("transport", "warn", message, do)]
    return [CheckResult("transport", "ok", "servers are called by TLS, or on this machine only")]


def _is_readable_on_the_way(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme == "http" and not is_loopback(parts.hostname or "")


def _check_certificate(certificate: Path) -> CheckResult:
    do = "renew it, and start the server again"
    try:
        days = measure_days_left(certificate)
    except InvalidInput as error:
        return CheckResult("transport", "error", str(error), "NOETL_TLS_CERT names a file in PEM")
    if days < 0:
        return CheckResult("transport", "error", f"{certificate} has expired", do)
    status: Literal["ok", "warn"] = "ok" if days > MIN_CERTIFICATE_DAYS else "warn"
    message = f"{certificate} expires in {days:.0f} days"
    return CheckResult("transport", status, message, do if status == "warn" else None)


async def _check_tokens(client: RowClient, place: HomeSettings) -> list[CheckResult]:
    """Check the token files of the home, and that no token expires soon."""
    try:
        for role in LOCAL_ROLES:
            read_token_file(place.home_path, role)
        rows = await client.list_tokens()
    except NotPermitted:
        return []  # the caller may not see tokens
    except InvalidInput as error:
        return [CheckResult("tokens", "error", str(error), error.hint)]
    return [judge_tokens(rows, datetime.now(UTC))]


def judge_tokens(rows: list[Row], now: datetime) -> CheckResult:
    """What is to be said of these tokens."""
    valid = [row for row in rows if row["valid"]]
    soon = [row for row in valid if row["expires_at"] is not None]
    soon = [row for row in soon if datetime.fromisoformat(row["expires_at"]) < now + EXPIRES_SOON]
    message = f"{len(valid)} valid, {len(rows) - len(valid)} expired or revoked"
    if not soon:
        return CheckResult("tokens", "ok", message)
    names = ", ".join(row["name"] for row in soon[:MAX_NAMED_FILES])
    do = "noetl token create makes another one: give it to its user before then"
    return CheckResult("tokens", "warn", f"{message}; within a week expires: {names}", do)


async def _check_storage(place: HomeSettings) -> list[CheckResult]:
    """Check that this machine reaches the store of large results that its settings name."""
    storage = read_settings(StorageSettings)
    if storage.storage_cloud_tier is None:
        return []
    try:
        async for _ in open_tier(place.home_path, storage).list_objects():
            break
    except NoetlError as error:
        return [
            CheckResult(
                "storage", "error", str(error), error.hint or "docs/storage.md has examples"
            )
        ]
    return [CheckResult("storage", "ok", f"{storage.storage_cloud_tier} answers")]


async def _check_lake_history(client: RowClient) -> list[CheckResult]:
    """Check that the events which compaction moved to the lake can be read."""
    problem = await client.check_history_readable()
    if problem == "ok":
        return [CheckResult("history", "ok", "compacted history can be read")]
    do = "let this machine reach the lake where it was when `noetl job compact` ran: NOETL_STORAGE_LAKE (docs/jobs.md)"
    return [CheckResult("history", "error", problem, do)]


async def _list_unfinished_executions(client: RowClient) -> list[Row]:
    rows: list[Row] = []
    for status in UNFINISHED_STATUSES:
        rows += await _list_all_executions(client, status)
    return rows


async def _check_executions(client: RowClient, unfinished: list[Row]) -> list[CheckResult]:
    """Check for executions that are stuck or quarantined."""
    stuck: list[Row] = []
    for row in unfinished:
        if _measure_age(row["updated_at"]) <= STUCK_AFTER:
            continue
        commands = await client.list_queue(execution_id=ExecutionId(row["execution_id"]))
        if not commands:
            stuck.append(row)
    quarantined = await _list_all_executions(client, "quarantined")
    return [
        _make_check_result(
            "stuck",
            stuck,
            "execution(s) run, and nothing has happened for a minute",
            "noetl exec get {} shows its steps; noetl exec cancel {} ends it",
        ),
        _make_check_result(
            "quarantined",
            quarantined,
            "execution(s) quarantined because their log cannot be folded",
            "noetl exec events {} shows why; noetl exec release {} goes on with it",
        ),
    ]


async def _list_all_executions(client: RowClient, status: str) -> list[Row]:
    rows: list[Row] = []
    page = await client.list_executions(status=status, limit=DOCTOR_PAGE_EXECUTIONS)
    while page:
        rows += page
        page = await client.list_executions(
            status=status, limit=DOCTOR_PAGE_EXECUTIONS, before=page[-1]["execution_id"]
        )
    return rows


async def _check_commands(client: RowClient, has_server: bool) -> list[CheckResult]:
    """Check for commands that no worker can take, expired leases, and dead commands."""
    leased = await client.list_queue("leased")
    expired = [row for row in leased if _measure_age(row["lease_until"]) > LEASE_GRACE]
    dead = await _list_dead_commands(client)
    return [
        await _check_queue(client, has_server),
        _make_check_result(
            "leases",
            expired,
            "command(s) whose lease has run out: no server looks after them",
            f"{SERVER_COMMANDS} takes them up; so does any noetl run",
        ),
        _make_check_result(
            "dead",
            dead,
            "command(s) that killed their workers five times",
            "noetl exec get {} shows its steps; noetl exec cancel {} ends it, then retry it",
        ),
    ]


async def _check_queue(client: RowClient, has_server: bool) -> CheckResult:
    """Check that every queued command has a worker that serves its pool."""
    queued = await client.list_queue("queued")
    pools = await find_unserved_pools(client, queued)
    if not pools:
        workers = await client.list_workers()
        return CheckResult("queue", "ok", f"{len(queued)} queued, {len(workers)} worker(s)")
    unserved = [row for row in queued if row["pool"] in pools]
    message = f"command(s) wait for a worker of {', '.join(pools)}"
    do = make_start_command(pools)
    if not has_server:
        do = f"noetl server start, then {do}; or noetl dev, which is both"
    return _make_check_result("queue", unserved, message, do, "warn")


async def _list_dead_commands(client: RowClient) -> list[Row]:
    """Dead commands of executions that have not ended. One that has ended reports its failure."""
    rows = await client.list_queue("dead")
    ids = dict.fromkeys(ExecutionId(row["execution_id"]) for row in rows)
    alive: set[str] = set()
    for execution_id in ids:
        execution = await client.get_execution(execution_id)
        if execution["ended_at"] is None:
            alive.add(execution_id)
    return [row for row in rows if row["execution_id"] in alive]


async def _check_projection_lag(client: RowClient) -> list[CheckResult]:
    """Check that projections are up to date."""
    lag_ms = await client.read_projection_lag()
    behind = [ms for ms in lag_ms.values() if ms > MAX_LAG_MS]
    if not behind:
        return [CheckResult("lag", "ok", "what is shown is up to date")]
    worst = max(behind) / 1000
    message = f"{len(behind)} shard(s) are not projected, the oldest event for {worst:.0f} s"
    do = f"{SERVER_COMMANDS} catches up; if one runs, look at its log"
    return [CheckResult("lag", "error", message, do)]


def _make_check_result(
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
    names = ", ".join(ids[:MAX_NAMED_EXECUTIONS])
    if len(ids) > MAX_NAMED_EXECUTIONS:
        names += " …"
    do = do.replace("{}", ids[0])
    return CheckResult(check, status, f"{len(rows)} {message} ({names})", do)


def _measure_age(at: str | None) -> timedelta:
    """The time since a moment. Zero if there is none."""
    if not at:
        return timedelta(0)
    return datetime.now(UTC) - datetime.fromisoformat(at)

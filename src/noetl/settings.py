"""Every `NOETL_*` setting: one class per concern; each field has a unit, a default and a sentence.

A process reads its settings once, where it is wired, and passes plain values on.
`docs/settings.md` is generated from this file.
"""

import os
import re
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

from noetl.model.errors import InvalidInput
from noetl.settings_group import Secret, SettingInvalid, SettingsGroup, setting

# With a user, a port and a path, all of which may be missing.
_SERVER_URL = re.compile(
    r"https?://(?:[^\s/?#@]+@)?(?:\[[0-9a-f:.]+\]|[\w.-]+)(?::(?P<port>\d+))?(?:/[^\s?#]*)?", re.I
)
_HOST = re.compile(r"(?:\[[0-9a-f:.]+\]|[\w.-]+)(?::\d{1,5})?", re.I)
MAX_PORT = 65_535


def _check_server_urls(text: str) -> str:
    """The text itself. Raises ValueError if a part of it cannot be the address of a server."""
    for part in filter(None, map(str.strip, text.split(","))):
        match = _SERVER_URL.fullmatch(part)
        if match is None or int(match["port"] or 0) > MAX_PORT:
            raise ValueError(f"{part!r} is not the address of a server, like http://127.0.0.1:8082")
    return text


class HomeSettings(SettingsGroup):
    """Where NoETL is on this machine, and whom the `noetl` command talks to."""

    home: Path = setting(
        Path("~/.noetl"),
        description="the directory of everything kept on this machine: database, results, spool, keys, logs",
        unit="path",
    )
    server_url: str | None = setting(
        None,
        description="the server that `noetl` commands and workers talk to; without it commands work on the home of this "
        "machine. Several, separated by commas, are tried in turn by a worker",
        unit="URL",
        read=_check_server_urls,
    )
    token: Secret | None = setting(
        None,
        description="the token that commands and workers send to the server. Without it, they use the one of NOETL_HOME "
        "if the server runs on the same home. `noetl token create` makes one",
        unit="token",
    )
    tls_ca: Path | None = setting(
        None,
        description="certificates, in PEM, that commands and workers trust beside those of the system when they call a server "
        "with TLS. Servers that run on the same home are trusted by their own certificate",
        unit="path",
    )
    debug: bool = setting(False, description="show the stack trace of an error", unit="flag")
    log_level: str | None = setting(
        None,
        pattern="(?i)^(debug|info|warning|error|critical)$",
        description="what processes log to stderr; without it, servers and workers log from INFO on, other commands ERROR",
        unit="level",
    )

    @property
    def home_path(self) -> Path:
        return self.home.expanduser().absolute()

    @property
    def server_urls(self) -> list[str]:
        urls = (self.server_url or "").split(",")
        return [url.strip().rstrip("/") for url in urls if url.strip()]


class DatabaseSettings(SettingsGroup):
    """The database of the log."""

    db_url: Secret | None = setting(
        None,
        description="a Postgres of yours (15 or newer) instead of the embedded one; the schema `noetl` is made in it",
        unit="URL",
    )
    postgres_bin: Path | None = setting(
        None,
        description="the `bin` directory of the Postgres to embed, instead of the one that is found",
        unit="path",
    )
    postgres_pool_max_size: int = setting(
        32,
        ge=2,
        le=1000,
        description="connections of a server for requests",
        unit="connections",
    )
    bg_pool_max_size: int = setting(
        4,
        ge=1,
        le=100,
        description="connections of a server for its duties",
        unit="connections",
    )


class StorageSettings(SettingsGroup):
    """Where large results are kept. `docs/storage.md` has a profile for each kind of store."""

    storage_cloud_tier: str | None = setting(
        None,
        pattern=r"^(s3|gs|az|file)://.+$",
        description="the durable home of results above 1 MB: `s3://bucket/prefix`, `gs://bucket/prefix`, "
        "`az://container/prefix`, `file:///shared/directory`; without it, `results` below NOETL_HOME. Keys, region and "
        "the like come from the environment, as with any client of that cloud, unless they are given here",
        unit="URL",
    )
    storage_lake: str | None = setting(
        None,
        pattern=r"^(/|~|(s3|gs|az|file)://).+$",
        description="where exported and compacted events are: an absolute directory, or a URL as above, which is reached with "
        "the same endpoint and keys; without it, `lake` below the home of large results. docs/jobs.md says how to move one",
        unit="URL or path",
    )
    storage_endpoint: str | None = setting(
        None,
        description="another server that speaks S3 (MinIO and the like); buckets are in the path, not in the host name",
        unit="URL",
    )
    storage_allow_http: bool = setting(
        False, description="allow an endpoint without TLS", unit="flag"
    )
    storage_region: str | None = setting(None, description="of the bucket", unit="name")
    storage_access_key_id: Secret | None = setting(None, description="of S3", unit="key")
    storage_secret_access_key: Secret | None = setting(None, description="of S3", unit="key")
    storage_local_cache_dir: Path | None = setting(
        None,
        description="the cache of what was read from the cloud; without it, `cache` below NOETL_HOME. "
        "A directory store (`file://`) is cached only when this is set",
        unit="path",
    )
    storage_local_cache_bytes: int = setting(
        10 << 30,
        ge=1 << 20,
        description="size of the cache for data; the least recently used data are removed first",
        unit="bytes",
    )
    storage_local_cache_meta_bytes: int = setting(
        256 << 20,
        ge=1 << 20,
        description="size of the cache for indexes and footers",
        unit="bytes",
    )
    storage_local_cache_rate: int = setting(
        64 << 20,
        ge=1,
        description="limit of what is written to the cache in a second; what is read beyond that is not cached",
        unit="bytes/s",
    )
    storage_patience_sec: float = setting(
        60.0,
        ge=0,
        le=3600,
        description="how long a worker waits for a store that does not answer, each time it tries; a result is tried eight "
        "times before its task fails with REFERENCE_NOT_AVAILABLE",
        unit="seconds",
    )
    storage_retention_sec: float | None = setting(
        None,
        ge=0,
        description="how long results stay after the end of their execution, unless their task says otherwise "
        "(`output: {ttl, scope}`) or they are pinned; without it, for ever. Servers read it",
        unit="seconds",
    )
    storage_orphan_age_sec: float = setting(
        86_400,
        ge=0,
        description="nothing is deleted before its execution has been over for so long, whatever its lifetime; "
        "large results that no reference names are deleted when they are this old, too",
        unit="seconds",
    )
    storage_sweep_sec: float = setting(
        86_400,
        ge=1,
        description="how often a worker looks for what can be deleted; the first time ten minutes after its "
        "start. Servers look once a minute, or as often as this",
        unit="seconds",
    )
    nats_url: Secret | None = setting(
        None,
        description="a NATS with JetStream, where workers keep what they have read of results up to 1 MB for each other; "
        "a cache only, servers are asked for what is not there. Several, separated by commas, are tried in turn",
        unit="URL",
    )
    event_result_context_max_bytes: int = setting(
        8_192,
        ge=4_096,
        le=8_192,
        description="what an event may say of a result: scalars, columns, what arcs ask for. A task whose result needs more "
        "fails with CONTEXT_TOO_LARGE; the database takes no more than 8 KB",
        unit="bytes",
    )
    default_store_tier: Literal["auto", "kv", "disk", "object"] = setting(
        "auto",
        description="where results go that name no `output.store`: `auto` by size, `kv` the servers' database up to 1 MB, "
        "`disk` (`object` is the same) the store of large results, whatever their size",
        unit="tier",
    )


class ShardSettings(SettingsGroup, prefix="NOETL_SHARD_"):
    """Shards of executions, and the leases of their owners."""

    count: int = setting(
        16,
        ge=1,
        le=1024,
        description="slices of executions; fixed when the database is made",
        unit="shards",
    )
    lease_sec: float = setting(
        6.0,
        ge=1,
        le=300,
        description="how long a shard or a command stays with an owner that does not renew it",
        unit="seconds",
    )
    heartbeat_sec: float = setting(
        2.0,
        ge=0.1,
        le=100,
        description="how often a server renews its lease; much less than the lease",
        unit="seconds",
    )


def _split_hosts(text: str) -> tuple[str, ...]:
    hosts = tuple(part.strip() for part in text.split(",") if part.strip())
    for host in hosts:
        if _HOST.fullmatch(host) is None:
            raise ValueError(f"{host!r} is not the name of a host, like noetl.example.org")
    return hosts


def _check_public_url(text: str) -> str:
    """The address without a slash at its end. Raises ValueError if it is none, or has a path."""
    url = _check_server_urls(text).rstrip("/")
    parts = urlsplit(url)
    if "," in url or "@" in parts.netloc or parts.path or not parts.netloc:
        raise ValueError(f"{text!r} is not the address of a page, like https://noetl.example.org")
    return url


class ListenSettings(SettingsGroup):
    """The address of a server."""

    host: str = setting(
        "127.0.0.1",
        description="the address to listen on; `0.0.0.0` for all of the machine. Use TLS on others than loopback",
        unit="address",
    )
    port: int = setting(8082, ge=0, le=65535, description="0: any free port", unit="port")
    allowed_hosts: tuple[str, ...] = setting(
        (),
        read=_split_hosts,
        description="names under which browsers and programs may call the server, separated by commas, each with or without a "
        "port (`noetl.example.org`). Loopback names and the address of the server need no entry; others are refused",
        unit="hosts",
    )
    public_url: str | None = setting(
        None,
        read=_check_public_url,
        description="the address of the page in browsers, if a proxy stands before the server (`https://noetl.example.org`). "
        "Its host is allowed; with https, cookies are sent over TLS only",
        unit="URL",
    )
    tls_cert: Path | None = setting(
        None, description="the certificate of the server with its chain, in PEM", unit="path"
    )
    tls_key: Path | None = setting(
        None,
        description="the private key of the certificate, in PEM, without a password",
        unit="path",
    )

    @property
    def all_hosts(self) -> tuple[str, ...]:
        """The names of the settings, with that of the public address."""
        public = urlsplit(self.public_url or "").netloc
        return (*self.allowed_hosts, public) if public else self.allowed_hosts


def _check_issuer(text: str) -> str:
    """The text itself: an issuer is compared letter by letter. Raises ValueError if it can be none."""
    match = _SERVER_URL.fullmatch(text)
    is_local = text.startswith(("http://127.0.0.1", "http://localhost", "http://[::1]"))
    if match is None or "@" in text or not (text.startswith("https://") or is_local):
        raise ValueError(f"{text!r} is not the address of an issuer, like https://id.example.org")
    return text


def _read_role_map(text: str) -> dict[str, str]:
    roles: dict[str, str] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        group, separator, role = part.rpartition("=")
        if not separator or not group.strip():
            raise ValueError(f"{part!r} is not GROUP=ROLE")
        roles[group.strip()] = role.strip()
    return roles


class OidcSettings(SettingsGroup, prefix="NOETL_OIDC_"):
    """Single sign-on by an issuer of OpenID Connect. `docs/security.md` says how to set it up."""

    issuer: str | None = setting(
        None,
        read=_check_issuer,
        description="that signs users in, letter by letter as it calls itself; without it, there is no single sign-on",
        unit="URL",
    )
    client_id: str | None = setting(None, description="that the issuer gave you", unit="text")
    client_secret: Secret | None = setting(
        None,
        description="that the issuer gave you; without it, the client is a public one",
        unit="text",
    )
    scopes: str = setting(
        "openid profile email",
        pattern=r"openid( [!-~]+)*",
        description="what the issuer is asked for; some have a scope for groups",
        unit="words",
    )
    roles_claim: str = setting(
        "groups",
        description="the claim that has the groups of a user; with dots for one inside another (`realm_access.roles`)",
        unit="name",
    )
    roles: dict[str, str] = setting(
        {},
        read=_read_role_map,
        description="the roles of groups, separated by commas (`data-team=author,ops=operator`); `*=viewer` for every user of "
        "the issuer. A user without a role cannot sign in",
        unit="GROUP=ROLE",
    )
    label: str = setting(
        "single sign-on", description="what the button of the page says", unit="text"
    )


class PageSettings(SettingsGroup):
    """The page that servers show in a browser."""

    ui: Literal["build", "skip"] = setting(
        "build",
        description="`skip`: a server in a checkout does not build the page, and a package is made without it. Installed "
        "packages have it built in",
        unit="`build` or `skip`",
    )


class DutySettings(SettingsGroup):
    """Intervals of background work of a server."""

    projection_poll_ms: int = setting(
        100,
        ge=10,
        le=60_000,
        description="how often rows of changed executions are written; one whose status stays, every 250 ms",
        unit="milliseconds",
    )


def _split_pools(text: str) -> tuple[str, ...]:
    pools = tuple(part.strip() for part in text.split(",") if part.strip())
    if not pools:
        raise ValueError("no pool is named")
    return pools


class WorkerProcessSettings(SettingsGroup):
    """A worker."""

    worker_id: str | None = setting(
        None,
        pattern=r"^[A-Za-z0-9_.-]{1,100}$",
        description="its name, the same over restarts and one of its kind; without it, host name and pools",
        unit="name",
    )
    worker_pools: tuple[str, ...] = setting(
        ("cpu", "spark"),
        read=_split_pools,
        description="the pools it takes commands from, separated by commas (`cpu,gpu`)",
        unit="names",
    )
    worker_slots: int = setting(
        16,
        ge=1,
        le=1024,
        description="commands that it works on at once",
        unit="commands",
    )
    worker_drain_sec: float = setting(
        30.0,
        ge=0,
        le=86_400,
        description="how long a worker that is told to stop waits for what it runs",
        unit="seconds",
    )
    queue_poll_interval: float = setting(
        1.5,
        ge=0.1,
        le=3,
        description="how long a request for work may stay open at a server that has none",
        unit="seconds",
    )


class StepLimitSettings(SettingsGroup, prefix="NOETL_STEP_"):
    """The highest limits that a task may set for its processes (`limits:` of `python` and `shell`).

    A task that sets none has lower ones: half of the memory, and enough of the rest for ordinary work.
    """

    max_memory_bytes: int | None = setting(
        None,
        ge=64 << 20,
        description="private memory of each process; without it, the memory of the machine or container",
        unit="bytes",
    )
    max_cpu_sec: int | None = setting(
        None,
        ge=1,
        description="processor time of a call or command; without it, no limit",
        unit="seconds",
    )
    max_processes: int | None = setting(
        None,
        ge=1,
        description="processes and threads of a step; without it, no limit. The system does not apply it to root",
        unit="processes",
    )
    max_file_bytes: int | None = setting(
        None,
        ge=1 << 20,
        description="size of each file that a step writes; without it, no limit",
        unit="bytes",
    )
    max_open_files: int | None = setting(
        None,
        ge=64,
        description="open files of each process; without it, the limit that the worker has itself",
        unit="files",
    )


def _split_folders(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


class DuckdbSettings(SettingsGroup, prefix="NOETL_DUCKDB_"):
    """DuckDB, for `kind: duckdb`."""

    folders: tuple[str, ...] = setting(
        (),
        read=_split_folders,
        description="the folders whose files SQL may read and write, separated by commas; without it, the folder in which the "
        "worker was started, unless NOETL_HOME is below it",
        unit="paths",
    )


def _split_targets(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


class EgressSettings(SettingsGroup, prefix="NOETL_HTTP_"):
    """Where `http` steps of a worker may connect to. `docs/security.md` has the rules."""

    allow: tuple[str, ...] = setting(
        (),
        read=_split_targets,
        description="private and loopback targets that workers of `noetl worker start` may call: hosts, addresses and networks, "
        "each with or without a port (`api.internal,10.1.0.0/16,127.0.0.1:9000,[fd12::1]:8080`). Public addresses need no entry, "
        "`noetl run` and `noetl dev` reach private ones anyway, and no entry opens link-local and metadata addresses",
        unit="hosts",
    )


class SparkSettings(SettingsGroup, prefix="NOETL_SPARK_"):
    """Spark, for `kind: spark`."""

    profile: str = setting(
        "local",
        description="where Spark is for steps that do not say: `local`, `sc://host:port/;token=…` (any Spark Connect server) or "
        "`cluster:spark://host:port` (executors on a standalone cluster). `none`: steps have no Spark, jobs run without it",
        unit="profile",
    )
    idle_sec: float = setting(
        600.0,
        ge=1,
        le=86_400,
        description="how long the Spark server of this machine stays when nobody uses it",
        unit="seconds",
    )
    java_options: str = setting(
        "",
        description="more options for the Java of that server: `-Xmx2g` for another size than a quarter of the machine, "
        "`-XX:TieredStopAtLevel=1` where most steps are short",
        unit="options",
    )
    copy_bytes: int = setting(
        64 << 20,
        ge=0,
        description="an input in an object store is copied to this machine up to this size; of a larger one Spark's tasks read "
        "what they need where it is",
        unit="bytes",
    )


class RetentionSettings(SettingsGroup):
    """How long events stay in the database. `docs/jobs.md` says what becomes of them."""

    retention_days: float = setting(
        30.0,
        ge=0,
        description="how long the events of an execution, and the snapshots that its page is read from, stay in the database "
        "after it has ended",
        unit="days",
    )
    compactor_enabled: bool = setting(
        False,
        description="a server moves older ones to files by itself, once an hour; without it, `noetl job compact` does",
        unit="flag",
    )
    export_enabled: bool = setting(
        False,
        description="a server exports new events to files by day by itself, once an hour; without it, `noetl job export` does",
        unit="flag",
    )


SETTINGS_GROUPS: tuple[type[SettingsGroup], ...] = (
    HomeSettings,
    DatabaseSettings,
    StorageSettings,
    ShardSettings,
    ListenSettings,
    OidcSettings,
    PageSettings,
    DutySettings,
    WorkerProcessSettings,
    StepLimitSettings,
    DuckdbSettings,
    EgressSettings,
    SparkSettings,
    RetentionSettings,
)
Concern = TypeVar("Concern", bound=SettingsGroup)


def read_settings(concern: type[Concern], **given: Any) -> Concern:
    """Read settings from the environment. Values `given` on the command line win, unless None."""
    values: dict[str, Any] = {}
    # An empty variable counts as unset: `NOETL_SERVER_URL= noetl run …` uses no server.
    environment = {name.upper(): text for name, text in os.environ.items() if text}
    for name in concern.fields:
        variable = variable_name(concern, name)
        if variable in environment:
            values[name] = environment[variable]
    values |= {name: value for name, value in given.items() if value is not None}
    try:
        return concern(**values)
    except SettingInvalid as error:
        variable = variable_name(concern, error.field)
        raise InvalidInput(
            f"{variable}: {error.problem}", hint=f"docs/settings.md says what {variable} means"
        ) from error


# Prefixes of variables that are not settings of a process: values for playbooks, credentials and
# secrets by name, test runs, and the environment of a shell task's commands.
OTHER_VARIABLES = (
    "NOETL_ENV_",
    "NOETL_CREDENTIAL_",
    "NOETL_SECRET_",
    "NOETL_SECRETS_DIR",
    "NOETL_TEST_",
    "NOETL_VALUE_",
    "NOETL_VAULT_",
)


def find_unknown_variables(environment: Iterable[str]) -> dict[str, str | None]:
    """`NOETL_*` variables that nothing reads, each with the most similar setting, if there is one."""
    known: list[str] = []
    for concern in SETTINGS_GROUPS:
        known += [variable_name(concern, field) for field in concern.fields]
    similar: dict[str, str | None] = {}
    for name in sorted(environment):
        if not name.startswith("NOETL_") or name.startswith(OTHER_VARIABLES):
            continue
        if name.upper() in known:
            continue
        matches = get_close_matches(name.upper(), known, n=1, cutoff=0.8)
        similar[name] = next(iter(matches), None)
    return similar


def variable_name(concern: type[SettingsGroup], field: str) -> str:
    return f"{concern.prefix}{field}".upper()

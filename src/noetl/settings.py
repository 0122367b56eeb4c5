"""Every `NOETL_*` setting: one class per concern; each field has a unit, a default and a sentence.

A process reads its settings once, where it is wired, and passes plain values on.
`docs/settings.md` is generated from this file.
"""

from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from noetl.model.errors import InvalidInput


class _SettingsGroup(BaseSettings):
    """Settings that belong together. The table in the docs shows the `unit` of each field."""

    # An empty variable counts as unset: `NOETL_SERVER_URL= noetl run …` uses no server.
    model_config = SettingsConfigDict(
        frozen=True, env_prefix="NOETL_", env_ignore_empty=True, extra="ignore"
    )


def _with_unit(name: str) -> dict[str, Any]:
    return {"unit": name}


class HomeSettings(_SettingsGroup):
    """Where NoETL is on this machine, and whom the `noetl` command talks to."""

    home: Path = Field(
        Path("~/.noetl"),
        description="the directory of everything kept on this machine: database, results, spool, keys, logs",
        json_schema_extra=_with_unit("path"),
    )
    server_url: str | None = Field(
        None,
        description="the server that `noetl` commands and workers talk to; without it commands work on the home of this "
        "machine. Several, separated by commas, are tried in turn by a worker",
        json_schema_extra=_with_unit("URL"),
    )
    debug: bool = Field(
        False, description="show the stack trace of an error", json_schema_extra=_with_unit("flag")
    )
    log_level: str | None = Field(
        None,
        pattern="(?i)^(debug|info|warning|error|critical)$",
        description="what processes log to stderr; without it, servers and workers log from INFO on, other commands ERROR",
        json_schema_extra=_with_unit("level"),
    )

    @property
    def home_path(self) -> Path:
        return self.home.expanduser().absolute()

    @property
    def server_urls(self) -> list[str]:
        urls = (self.server_url or "").split(",")
        return [url.strip().rstrip("/") for url in urls if url.strip()]


class DatabaseSettings(_SettingsGroup):
    """The database of the log."""

    db_url: SecretStr | None = Field(
        None,
        description="a Postgres of yours (15 or newer) instead of the embedded one; the schema `noetl` is made in it",
        json_schema_extra=_with_unit("URL"),
    )
    postgres_bin: Path | None = Field(
        None,
        description="the `bin` directory of the Postgres to embed, instead of the one that is found",
        json_schema_extra=_with_unit("path"),
    )
    postgres_pool_max_size: int = Field(
        32,
        ge=2,
        le=1000,
        description="connections of a server for requests",
        json_schema_extra=_with_unit("connections"),
    )
    bg_pool_max_size: int = Field(
        4,
        ge=1,
        le=100,
        description="connections of a server for its duties",
        json_schema_extra=_with_unit("connections"),
    )


class StorageSettings(_SettingsGroup):
    """Where large results are kept. `docs/storage.md` has a profile for each kind of store."""

    storage_cloud_tier: str | None = Field(
        None,
        pattern=r"^(s3|gs|az|file)://.+$",
        description="the durable home of results above 1 MB: `s3://bucket/prefix`, `gs://bucket/prefix`, "
        "`az://container/prefix`, `file:///shared/directory`; without it, `results` below NOETL_HOME. Keys, region and "
        "the like come from the environment, as with any client of that cloud, unless they are given here",
        json_schema_extra=_with_unit("URL"),
    )
    storage_lake: str | None = Field(
        None,
        pattern=r"^(/|~|(s3|gs|az|file)://).+$",
        description="where exported and compacted events are: an absolute directory, or a URL as above, which is reached with "
        "the same endpoint and keys; without it, `lake` below the home of large results. docs/jobs.md says how to move one",
        json_schema_extra=_with_unit("URL or path"),
    )
    storage_endpoint: str | None = Field(
        None,
        description="another server that speaks S3 (MinIO and the like); buckets are in the path, not in the host name",
        json_schema_extra=_with_unit("URL"),
    )
    storage_allow_http: bool = Field(
        False, description="allow an endpoint without TLS", json_schema_extra=_with_unit("flag")
    )
    storage_region: str | None = Field(
        None, description="of the bucket", json_schema_extra=_with_unit("name")
    )
    storage_access_key_id: SecretStr | None = Field(
        None, description="of S3", json_schema_extra=_with_unit("key")
    )
    storage_secret_access_key: SecretStr | None = Field(
        None, description="of S3", json_schema_extra=_with_unit("key")
    )
    storage_local_cache_dir: Path | None = Field(
        None,
        description="the cache of what was read from the cloud; without it, `cache` below NOETL_HOME. "
        "A directory store (`file://`) is cached only when this is set",
        json_schema_extra=_with_unit("path"),
    )
    storage_local_cache_bytes: int = Field(
        10 << 30,
        ge=1 << 20,
        description="size of the cache for data; the least recently used data are removed first",
        json_schema_extra=_with_unit("bytes"),
    )
    storage_local_cache_meta_bytes: int = Field(
        256 << 20,
        ge=1 << 20,
        description="size of the cache for indexes and footers",
        json_schema_extra=_with_unit("bytes"),
    )
    storage_local_cache_rate: int = Field(
        64 << 20,
        ge=1,
        description="limit of what is written to the cache in a second; what is read beyond that is not cached",
        json_schema_extra=_with_unit("bytes/s"),
    )
    storage_patience_sec: float = Field(
        60.0,
        ge=0,
        le=3600,
        description="how long a worker waits for a store that does not answer, each time it tries; a result is tried eight "
        "times before its task fails with REFERENCE_NOT_AVAILABLE",
        json_schema_extra=_with_unit("seconds"),
    )
    storage_retention_sec: float | None = Field(
        None,
        ge=0,
        description="how long results stay after the end of their execution, unless their task says otherwise "
        "(`output: {ttl, scope}`) or they are pinned; without it, for ever. Servers read it",
        json_schema_extra=_with_unit("seconds"),
    )
    storage_orphan_age_sec: float = Field(
        86_400,
        ge=0,
        description="nothing is deleted before its execution has been over for so long, whatever its lifetime; "
        "large results that no reference names are deleted when they are this old, too",
        json_schema_extra=_with_unit("seconds"),
    )
    storage_sweep_sec: float = Field(
        86_400,
        ge=1,
        description="how often a worker looks for what can be deleted; the first time ten minutes after its "
        "start. Servers look once a minute, or as often as this",
        json_schema_extra=_with_unit("seconds"),
    )
    nats_url: SecretStr | None = Field(
        None,
        description="a NATS with JetStream, where workers keep what they have read of results up to 1 MB for each other; "
        "a cache only, servers are asked for what is not there. Several, separated by commas, are tried in turn",
        json_schema_extra=_with_unit("URL"),
    )
    event_result_context_max_bytes: int = Field(
        8_192,
        ge=4_096,
        le=8_192,
        description="what an event may say of a result: scalars, columns, what arcs ask for. A task whose result needs more "
        "fails with CONTEXT_TOO_LARGE; the database takes no more than 8 KB",
        json_schema_extra=_with_unit("bytes"),
    )
    default_store_tier: Literal["auto", "kv", "disk", "object"] = Field(
        "auto",
        description="where results go that name no `output.store`: `auto` by size, `kv` the servers' database up to 1 MB, "
        "`disk` (`object` is the same) the store of large results, whatever their size",
        json_schema_extra=_with_unit("tier"),
    )


class ShardSettings(_SettingsGroup):
    """Shards of executions, and the leases of their owners."""

    model_config = SettingsConfigDict(env_prefix="NOETL_SHARD_")

    count: int = Field(
        16,
        ge=1,
        le=1024,
        description="slices of executions; fixed when the database is made",
        json_schema_extra=_with_unit("shards"),
    )
    lease_sec: float = Field(
        6.0,
        ge=1,
        le=300,
        description="how long a shard or a command stays with an owner that does not renew it",
        json_schema_extra=_with_unit("seconds"),
    )
    heartbeat_sec: float = Field(
        2.0,
        ge=0.1,
        le=100,
        description="how often a server renews its lease; much less than the lease",
        json_schema_extra=_with_unit("seconds"),
    )


class ListenSettings(_SettingsGroup):
    """The address of a server."""

    host: str = Field(
        "127.0.0.1",
        description="the loopback address to listen on: there is no login yet, others are refused",
        json_schema_extra=_with_unit("address"),
    )
    port: int = Field(
        8082, ge=0, le=65535, description="0: any free port", json_schema_extra=_with_unit("port")
    )


class DutySettings(_SettingsGroup):
    """Intervals of background work of a server."""

    projection_poll_ms: int = Field(
        100,
        ge=10,
        le=60_000,
        description="how often rows of changed executions are written; one whose status stays, every 250 ms",
        json_schema_extra=_with_unit("milliseconds"),
    )


class WorkerProcessSettings(_SettingsGroup):
    """A worker."""

    worker_id: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9_.-]{1,100}$",
        description="its name, the same over restarts and one of its kind; without it, host name and pools",
        json_schema_extra=_with_unit("name"),
    )
    worker_pools: Annotated[tuple[str, ...], NoDecode] = Field(
        ("cpu", "spark"),
        description="the pools it takes commands from, separated by commas (`cpu,gpu`)",
        json_schema_extra=_with_unit("names"),
    )
    worker_slots: int = Field(
        16,
        ge=1,
        le=1024,
        description="commands that it works on at once",
        json_schema_extra=_with_unit("commands"),
    )
    worker_drain_sec: float = Field(
        30.0,
        ge=0,
        le=86_400,
        description="how long a worker that is told to stop waits for what it runs",
        json_schema_extra=_with_unit("seconds"),
    )
    queue_poll_interval: float = Field(
        1.5,
        ge=0.1,
        le=3.0,
        description="how long a request for work may stay open at a server that has none",
        json_schema_extra=_with_unit("seconds"),
    )

    @field_validator("worker_pools", mode="before")
    @classmethod
    def _split_pools(cls, value: Any) -> Any:
        if isinstance(value, str):
            value = tuple(part.strip() for part in value.split(",") if part.strip())
        if not value:
            raise ValueError("no pool is named")
        return value


class SparkSettings(_SettingsGroup):
    """Spark, for `kind: spark`."""

    model_config = SettingsConfigDict(env_prefix="NOETL_SPARK_")

    profile: str = Field(
        "local",
        description="where Spark is for steps that do not say: `local`, `sc://host:port/;token=…` (any Spark Connect server) or "
        "`cluster:spark://host:port` (executors on a standalone cluster). `none`: steps have no Spark, jobs run without it",
        json_schema_extra=_with_unit("profile"),
    )
    idle_sec: float = Field(
        600.0,
        ge=1,
        le=86_400,
        description="how long the Spark server of this machine stays when nobody uses it",
        json_schema_extra=_with_unit("seconds"),
    )
    java_options: str = Field(
        "",
        description="more options for the Java of that server: `-Xmx2g` for another size than a quarter of the machine, "
        "`-XX:TieredStopAtLevel=1` where most steps are short",
        json_schema_extra=_with_unit("options"),
    )
    copy_bytes: int = Field(
        64 << 20,
        ge=0,
        description="an input in an object store is copied to this machine up to this size; of a larger one Spark's tasks read "
        "what they need where it is",
        json_schema_extra=_with_unit("bytes"),
    )


class RetentionSettings(_SettingsGroup):
    """How long events stay in the database. `docs/jobs.md` says what becomes of them."""

    retention_days: float = Field(
        30.0,
        ge=0,
        description="how long the events of an execution stay in the database after it has ended",
        json_schema_extra=_with_unit("days"),
    )
    compactor_enabled: bool = Field(
        False,
        description="a server moves older ones to files by itself, once an hour; without it, `noetl job compact` does",
        json_schema_extra=_with_unit("flag"),
    )
    export_enabled: bool = Field(
        False,
        description="a server exports new events to files by day by itself, once an hour; without it, `noetl job export` does",
        json_schema_extra=_with_unit("flag"),
    )


SETTINGS_GROUPS: tuple[type[_SettingsGroup], ...] = (
    HomeSettings,
    DatabaseSettings,
    StorageSettings,
    ShardSettings,
    ListenSettings,
    DutySettings,
    WorkerProcessSettings,
    SparkSettings,
    RetentionSettings,
)
Concern = TypeVar("Concern", bound=_SettingsGroup)


def read_settings(concern: type[Concern], **given: Any) -> Concern:
    """Read settings from the environment. Values `given` on the command line win, unless None."""
    values = {name: value for name, value in given.items() if value is not None}
    try:
        return concern(**values)
    except ValidationError as error:
        problem = error.errors()[0]
        name = variable_name(concern, str(problem["loc"][0]))
        raise InvalidInput(
            f"{name}: {problem['msg'].lower()}", hint=f"docs/settings.md says what {name} means"
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
)


def find_unknown_variables(environment: Iterable[str]) -> dict[str, str | None]:
    """`NOETL_*` variables that nothing reads, each with the most similar setting, if there is one."""
    known: list[str] = []
    for concern in SETTINGS_GROUPS:
        known += [variable_name(concern, field) for field in concern.model_fields]
    similar: dict[str, str | None] = {}
    for name in sorted(environment):
        if not name.startswith("NOETL_") or name.startswith(OTHER_VARIABLES):
            continue
        if name.upper() in known:
            continue
        matches = get_close_matches(name.upper(), known, n=1, cutoff=0.8)
        similar[name] = next(iter(matches), None)
    return similar


def variable_name(concern: type[_SettingsGroup], field: str) -> str:
    return f"{concern.model_config['env_prefix']}{field}".upper()

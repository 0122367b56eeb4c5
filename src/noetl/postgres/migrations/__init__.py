"""The database schema: numbered SQL files in this folder, and the function that applies them.

Migrations go forward only. An applied file never changes again: its checksum is in
`noetl.schema_version`. One transaction under an advisory lock applies all missing files, so any
number of processes may start at once. Every process that opens the database calls it.

Servers work as the role `APP_ROLE`, if the database has it: it appends events and may not change
them. It gets its rights here, because a migration may make tables, and the role may be made later.
"""

from hashlib import sha256
from pathlib import Path

from msgspec import Struct

from noetl.model.errors import NoetlError
from noetl.postgres.pool import Connection
from noetl.postgres.roles import APP_ROLE

DEFAULT_SHARDS = 16
PARTITIONS_AHEAD = 2
_ADVISORY_LOCK = (1852794997, 1)  # class and object of the advisory lock; leases use another class


class SchemaMismatch(NoetlError):
    """The database was made or changed by another version of NoETL."""

    code = "SCHEMA_MISMATCH"


class Migration(Struct, frozen=True):
    version: int
    name: str
    text: str
    sha256: str


def load_migrations() -> list[Migration]:
    files = sorted(Path(__file__).parent.glob("[0-9]*.sql"))
    known = [_read_migration(path) for path in files]
    versions = [migration.version for migration in known]
    assert versions == list(range(1, len(known) + 1)), "migrations are numbered without gaps"
    return known


def _read_migration(path: Path) -> Migration:
    text = path.read_text(encoding="utf-8")
    number, _, name = path.stem.partition("_")
    return Migration(int(number), name, text, sha256(text.encode()).hexdigest())


async def migrate(connection: Connection, *, shards: int = DEFAULT_SHARDS) -> int:
    """Bring the schema up to date. Returns the number of shards of the database.

    `shards` counts only for a new database: the number is fixed when the database is made.
    """
    known = load_migrations()
    if not _find_missing_migrations(await _read_applied_checksums(connection), known):
        if await _lacks_rights(connection):
            async with connection.transaction():
                await connection.execute("select pg_advisory_xact_lock($1, $2)", *_ADVISORY_LOCK)
                await _grant_app_rights(connection)
        return await count_shards(connection)
    async with connection.transaction():
        await connection.execute("set local statement_timeout = 0")
        await connection.execute("select pg_advisory_xact_lock($1, $2)", *_ADVISORY_LOCK)
        missing = _find_missing_migrations(await _read_applied_checksums(connection), known)
        if missing:
            await connection.execute(_make_script(missing))
        await connection.executemany(
            "insert into noetl.schema_version (version, name, sha256, applied_at) values ($1, $2, $3, now())",
            [(migration.version, migration.name, migration.sha256) for migration in missing],
        )
        await connection.execute("select noetl.make_partitions($1)", PARTITIONS_AHEAD)
        await _grant_app_rights(connection)
        await connection.execute(
            "insert into noetl.execution_shard (shard_id) select generate_series(0, $1 - 1)"
            " where not exists (select from noetl.execution_shard)",
            shards,
        )
    return await count_shards(connection)


def _make_script(missing: list[Migration]) -> str:
    """The statements of all these migrations, for one round trip."""
    texts = [migration.text for migration in missing]
    if missing[0].version == 1:
        texts.insert(0, _CREATE_VERSION_TABLE)
    return "\n;\n".join(texts)


async def count_shards(connection: Connection) -> int:
    count: int = await connection.fetchval("select count(*)::int from noetl.execution_shard")
    return count


async def _grant_app_rights(connection: Connection) -> None:
    """Give the role of servers its rights, if the database has this role. The caller opens the
    transaction. Where not all migrations are applied yet, there may be no function for it."""
    function = await connection.fetchval("select to_regprocedure('noetl.grant_app_rights(text)')")
    if function is None:
        return
    await connection.execute(
        "select noetl.grant_app_rights(rolname) from pg_roles where rolname = $1", APP_ROLE
    )


async def _lacks_rights(connection: Connection) -> bool:
    """Whether the role of servers was made after the last migration."""
    lacks: bool = await connection.fetchval(
        "select exists (select from pg_roles r where r.rolname = $1"
        " and not has_schema_privilege(r.oid, 'noetl', 'usage'))",
        APP_ROLE,
    )
    return lacks


_CREATE_VERSION_TABLE = """
create schema if not exists noetl;
create table noetl.schema_version (
    version int primary key, name text not null, sha256 text not null, applied_at timestamptz not null);
"""


async def _read_applied_checksums(connection: Connection) -> dict[int, str]:
    if await connection.fetchval("select to_regclass('noetl.schema_version')") is None:
        return {}
    rows = await connection.fetch("select version, sha256 from noetl.schema_version")
    return {row["version"]: row["sha256"] for row in rows}


def _find_missing_migrations(applied: dict[int, str], known: list[Migration]) -> list[Migration]:
    """The known migrations that the database lacks. Raises if it has others than this version."""
    newest = max(applied, default=0)
    if newest > len(known):
        raise SchemaMismatch(
            f"the database has schema version {newest}, this NoETL knows {len(known)}",
            hint="use the newer NoETL that upgraded it, or another database",
        )
    for migration in known:
        checksum = applied.get(migration.version, migration.sha256)
        if checksum != migration.sha256:
            raise SchemaMismatch(
                f"migration {migration.version} ({migration.name}) is not the one that this database was made with",
                hint="a released migration never changes; restore the file, or use another database",
            )
    return [migration for migration in known if migration.version not in applied]

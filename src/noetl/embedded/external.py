"""An existing database, named by `NOETL_DB_URL`. Nothing is started, only checked."""

from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

from noetl.embedded.binaries import MIN_POSTGRES_MAJOR
from noetl.model.errors import InvalidInput, Unavailable
from noetl.postgres.roles import APP_ROLE

CHECK_TIMEOUT_S = 10  # to connect
_FIND_APP_ROLE = (
    "select rolname::text from pg_roles where rolname = $1 and pg_has_role(oid, 'member')"
)


class DatabaseUnavailable(Unavailable):
    """The database cannot be reached."""

    code = "DATABASE_UNAVAILABLE"


class DatabaseRefused(InvalidInput):
    """The database answers, but NoETL cannot use it."""

    code = "DATABASE_REFUSED"


async def check_database(url: str) -> str | None:
    """Connect once. Raises an error that names the remedy if the database cannot be used.

    Returns the role that servers take, if there is one that this login may take.
    """
    # A worker imports this module for the addresses of the embedded database, and needs no driver.
    asyncpg: Any = import_module("asyncpg")
    host, port, database = parse_database_url(url)
    where = f"{host}:{port}"
    try:
        connection = await asyncpg.connect(url, timeout=CHECK_TIMEOUT_S)
    except (
        OSError,
        TimeoutError,
        asyncpg.CannotConnectNowError,
        asyncpg.TooManyConnectionsError,
    ) as error:
        raise DatabaseUnavailable(
            f"no database answers at {where} (NOETL_DB_URL): {error or 'time ran out'}",
            hint="start it, correct NOETL_DB_URL, or unset it to use the embedded one",
            host=host,
            port=port,
        ) from error
    except asyncpg.InvalidAuthorizationSpecificationError as error:
        raise DatabaseRefused(
            f"the database at {where} does not let us in: {error}",
            hint="correct user and password in NOETL_DB_URL",
        ) from error
    except asyncpg.InvalidCatalogNameError as error:
        raise DatabaseRefused(
            f"there is no database {database} at {where}",
            hint=f"create it (CREATE DATABASE {database}), or correct NOETL_DB_URL",
        ) from error
    except (asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise DatabaseRefused(
            f"the database at {where} refuses: {error}", hint="correct NOETL_DB_URL"
        ) from error
    try:
        major = connection.get_server_version().major
        app_role: str | None = await connection.fetchval(_FIND_APP_ROLE, APP_ROLE)
    finally:
        await connection.close()
    if major < MIN_POSTGRES_MAJOR:
        raise DatabaseRefused(
            f"the database at {where} is Postgres {major}; {MIN_POSTGRES_MAJOR} or newer is needed",
            hint="upgrade it, or unset NOETL_DB_URL to use the embedded one",
        )
    return app_role


def parse_database_url(url: str) -> tuple[str, int, str]:
    """The host, port and database of a URL."""
    try:
        parts = urlsplit(url)
        if not parts.scheme:
            raise ValueError("it names no scheme")
        if parts.scheme not in ("postgres", "postgresql"):
            raise ValueError(f"it begins with {parts.scheme}:")
        database = parts.path.lstrip("/") or parts.username or ""
        return parts.hostname or "localhost", parts.port or 5432, database
    except ValueError as error:
        raise InvalidInput(
            f"NOETL_DB_URL is not an address of Postgres: {error}",
            hint="postgresql://user:password@host:5432/database",
        ) from error

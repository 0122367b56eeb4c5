"""The stack of the crash tests: its processes die where a test says so, and their leases end soon."""

from collections.abc import Iterator
from contextlib import contextmanager

from tests.stack import NoetlCommand, Stack, run_stack, temporary_home

SHORT_LEASES = {"NOETL_SHARD_LEASE_SEC": "2", "NOETL_SHARD_HEARTBEAT_SEC": "0.5"}


@contextmanager
def run_crash_stack(dsn: str | None, *, workers: int = 1, **settings: str) -> Iterator[Stack]:
    """Over this database, or over the embedded one of its home. A test waits for the server itself."""
    with temporary_home("crash", has_database=False) as home:
        command = NoetlCommand(home).with_env(**{**SHORT_LEASES, **settings})
        if dsn is not None:
            command = command.and_env(NOETL_DB_URL=dsn)
        with run_stack(
            command, workers=workers, slots=8, has_crash_points=True, waits=False
        ) as stack:
            yield stack

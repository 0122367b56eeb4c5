"""What SQL of playbooks may reach in DuckDB, which runs inside the worker: some folders, and nothing else."""

from collections.abc import Iterable, Sequence

import duckdb

from noetl.tools.sql.statements import quote_sql_text

# Set in this order: the last one forbids SQL to change any of them.
LOCKED_SETTINGS = (
    "autoinstall_known_extensions = false",
    "autoload_known_extensions = false",
    "allow_community_extensions = false",
    "enable_external_access = false",
    "lock_configuration = true",
)


def lock_connection(
    connection: duckdb.DuckDBPyConnection, folders: Sequence[str], files: Iterable[str] = ()
) -> None:
    """Allow SQL only the files below `folders`, and `files`.

    It can read or write no other file, not even `/proc`, install no extension and change no
    configuration. The database that is open stays usable. Connections of one process to the same
    database file share their settings, so a later one finds them locked already.
    """
    if connection.execute("SELECT current_setting('lock_configuration')").fetchone() == (True,):
        return
    connection.execute(f"SET allowed_directories = {_format_list(folders)}")
    connection.execute(f"SET allowed_paths = {_format_list(files)}")
    for setting in LOCKED_SETTINGS:
        connection.execute(f"SET {setting}")


def _format_list(texts: Iterable[str]) -> str:
    return "[" + ", ".join(map(quote_sql_text, texts)) + "]"

"""The folders that SQL of playbooks may reach. Apart from `access`, which loads DuckDB."""

from collections.abc import Sequence
from pathlib import Path


def list_allowed_folders(named: Sequence[str], home: Path, current: Path) -> tuple[str, ...]:
    """The folders that an operator names, or else the current one.

    The current folder is not allowed if NOETL_HOME is below it or around it.
    """
    if named:
        return tuple(str(Path(folder).expanduser().absolute()) for folder in named)
    if home.is_relative_to(current) or current.is_relative_to(home):
        return ()
    return (str(current),)

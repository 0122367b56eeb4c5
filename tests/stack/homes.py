"""Homes that last as long as a test, and what their databases must hold at the end."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from noetl.embedded import EmbeddedPostgres
from tests.inspection import inspect
from tests.postgres import scratch


@contextmanager
def temporary_home(use: str, *, has_database: bool = True) -> Iterator[Path]:
    """A folder that is removed afterwards. The embedded database in it is inspected before that."""
    home = Path(tempfile.mkdtemp(dir=scratch(), prefix=f"noetl-test-{use}-"))
    try:
        yield home
        if has_database:
            inspect_home(home)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def inspect_home(home: Path) -> None:
    """Check what tests left in the embedded database of this home, and stop it."""
    embedded = EmbeddedPostgres(home)
    try:
        inspect(embedded.ensure_postgres().control)
    finally:
        embedded.stop_postgres()

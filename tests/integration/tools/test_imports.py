"""When the libraries of tools are imported. Each test looks at a process of its own."""

import subprocess
import sys


def test_a_tool_is_imported_when_it_is_first_used() -> None:
    code = """
import sys
import threading
from noetl.tools.registry import make_registry
tools = make_registry()
assert {"http", "postgres", "duckdb", "shell", "python", "secrets"} <= set(tools.kinds)
heavy = {"httpx", "psycopg", "duckdb", "pyarrow"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
assert tools.get("shell").kind == "shell" and not heavy & set(sys.modules)
assert tools.get("postgres").kind == "postgres" and tools.get("postgres") is tools.get("postgres")
"""
    subprocess.run([sys.executable, "-c", code], check=True)


AFTER_LOADING = """
import asyncio, sys
from noetl.tools.registry import make_registry

async def main():
    registry = make_registry()
    await registry.load("postgres")
    from noetl.tools.postgres.types import make_conversions
    known = set(sys.modules)
    make_conversions(["n"], [(23, -1)], [[1, 2]])[0].make_array([1, 2])
    print(sorted(set(sys.modules) - known))

asyncio.run(main())
"""


def test_rows_of_postgres_load_no_library_on_the_loop() -> None:
    """Two seconds of loading on the loop were a lease that nobody renewed."""
    done = subprocess.run(
        [sys.executable, "-c", AFTER_LOADING], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"

"""The lock file of a worker process, seen from another process."""

import asyncio
import subprocess
import sys
from pathlib import Path

from noetl.runtime.worker_locks import WorkerLocks

HOLDS = """
import sys
from pathlib import Path
from noetl.runtime.worker_locks import lock_worker

with lock_worker(Path(sys.argv[1]), "other", "life1"):
    print("locked", flush=True)
    sys.stdin.read()
"""


def find_dead(home: Path) -> list[str]:
    return asyncio.run(WorkerLocks(home).find_dead_holders())


def test_killed_process_is_dead_and_a_running_one_is_not(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"locked\n"
        assert find_dead(tmp_path) == []
        process.kill()
        process.wait()
        assert find_dead(tmp_path) == ["other/life1"]
    finally:
        process.kill()
        process.communicate()

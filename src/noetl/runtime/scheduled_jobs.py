"""The jobs that a server runs by the clock, each in a process of its own."""

import asyncio
import logging
import sys
from functools import partial

from noetl.model.errors import NoetlError
from noetl.server.duties.jobs import Run
from noetl.settings import RetentionSettings, read_settings

log = logging.getLogger(__name__)


def make_scheduled_jobs() -> dict[str, Run]:
    """The jobs that a server runs by the clock. Each runs in a process of its own."""
    retention = read_settings(RetentionSettings)
    jobs = {"export": retention.export_enabled, "compact": retention.compactor_enabled}
    return {name: partial(_run_job_process, name) for name, enabled in jobs.items() if enabled}


async def _run_job_process(name: str) -> None:
    """Run a job in a process of its own. A cancelled job is killed; the next run repeats its work."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "noetl",
        "job",
        name,
        "--json",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    if process.returncode:
        raise NoetlError(f"job {name}: {err.decode(errors='replace').strip()}")
    log.info("job done", extra={"job": name, "found": out.decode().strip()})

"""Builds the page in the background while a server runs in a checkout. An installed package has it built in."""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import noetl

log = logging.getLogger(__name__)

START_DELAY_S = 2.0  # the server itself starts first


def find_build_script() -> Path | None:
    """The script that builds the page, if this package runs from a checkout."""
    script = Path(noetl.__file__).parents[2] / "ui" / "build.py"
    return script if script.is_file() else None


@asynccontextmanager
async def build_page_meanwhile(
    script: Path | None, delay_s: float = START_DELAY_S
) -> AsyncIterator[None]:
    """Run the script beside the block, in a process of the lowest priority. Without one, do nothing."""
    if script is None:
        yield
        return
    building = asyncio.ensure_future(_build_page(script, delay_s))
    try:
        yield
    finally:
        building.cancel()
        await asyncio.wait((building,))


async def _build_page(script: Path, delay_s: float) -> None:
    await asyncio.sleep(delay_s)
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(script),
            "--background",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,  # with the programs that it starts
        )
    except OSError as error:
        log.warning("page not built", extra={"error": str(error)})
        return
    try:
        await _log_lines(process)
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            await process.wait()


async def _log_lines(process: asyncio.subprocess.Process) -> None:
    """Log what the script prints: how far it is, and why it failed."""
    assert process.stdout is not None
    async for line in process.stdout:
        log.info(line.decode(errors="replace").rstrip())
    if await process.wait() != 0:
        log.warning("page not built", extra={"code": process.returncode})

"""The page is built beside a server of a checkout, and the build ends with the server."""

import asyncio
import logging
from pathlib import Path

import pytest

from noetl.runtime.page_build import build_page_meanwhile, find_build_script
from tests.waiting import until, wait_until


def write_script(folder: Path, text: str) -> Path:
    script = folder / "build.py"
    script.write_text(text)
    return script


async def wait_for_lines(caplog: pytest.LogCaptureFixture, count: int) -> list[str]:
    async def has_lines() -> bool:
        return len(caplog.messages) >= count

    await wait_until(has_lines)
    return caplog.messages


def test_a_checkout_has_the_script() -> None:
    assert find_build_script() == Path(__file__).parents[3] / "ui" / "build.py"


def test_progress_is_logged_and_failure_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    text = "import sys\nprint('building the page…')\nprint(sys.argv[1])\nsys.exit(1)"
    script = write_script(tmp_path, text)

    async def run() -> list[str]:
        async with build_page_meanwhile(script, delay_s=0):
            return await wait_for_lines(caplog, 3)

    said = asyncio.run(run())
    assert said == ["building the page…", "--background", "page not built"]
    assert caplog.records[-1].levelno == logging.WARNING


def test_a_build_and_its_programs_end_with_the_server(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    text = """
import subprocess
child = subprocess.Popen(["sleep", "1000"])
print(child.pid, flush=True)
child.wait()
"""
    script = write_script(tmp_path, text)

    async def run() -> int:
        async with build_page_meanwhile(script, delay_s=0):
            [pid] = await wait_for_lines(caplog, 1)
        return int(pid)

    pid = asyncio.run(run())

    until(lambda: has_ended(pid))


def has_ended(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    return state == "Z"  # nobody has asked for its end yet


def test_without_a_script_nothing_runs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def count_tasks() -> int:
        async with build_page_meanwhile(None, delay_s=0):
            return len(asyncio.all_tasks())

    assert asyncio.run(count_tasks()) == 1

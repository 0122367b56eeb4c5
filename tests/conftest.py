"""What every test shares: it does not sleep; what is looked at in the logs it leaves behind; an API to ask; the profiles
of hypothesis.

`HYPOTHESIS_PROFILE=search` looks for new examples instead of the same ones.
"""

# ruff: noqa: E402  the first statement concerns all imports after it

import gc
import os
import subprocess
import sys
from collections.abc import Generator, Iterator
from typing import Any

from tests.bytecode import keep_bytecode

keep_bytecode()

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from tests import inspection, waiting
from tests.api.process import Api, run_api
from tests.examples import PROFILE, count_examples
from tests.stack import open_stacks

PROCESSES = 3  # two cores: tests often wait for a server, for Spark or for a lease
SHARED_STACK = "tests/crash/test_spark_writes.py"

settings.register_profile(
    "suite",
    deadline=None,
    derandomize=True,
    max_examples=count_examples(50),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("search", parent=settings.get_profile("suite"), derandomize=False)
settings.load_profile(PROFILE)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """The whole suite is shared among processes. What is named runs in one."""
    whole = (
        config.args_source is pytest.Config.ArgsSource.TESTPATHS
        and "PYTEST_XDIST_WORKER" not in os.environ
    )
    if (
        whole
        and config.option.numprocesses is None
        and not config.option.usepdb
        and not config.option.collectonly
    ):
        config.option.numprocesses = PROCESSES
        config.option.dist = "loadscope"
        # As collected: the short unit tests come last and fill both processes.
        config.option.loadscopereorder = False
        # Meanwhile, because no test of Spark is among the first. It ends by itself.
        subprocess.Popen([sys.executable, "-m", "tests.spark"])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    return FileScheduling(config, log) if config.option.dist == "loadscope" else None


class FileScheduling(LoadScopeScheduling):
    """A file runs in one process, because its tests share servers and databases. Kills take long and share little, so they are
    spread. (Marks for `loadgroup` have no effect with pytest 9.2: pytest-xdist issue 1386.)"""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        is_spread = file.startswith("tests/crash/") and file != SHARED_STACK
        return nodeid if is_spread else file


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that fails shows the logs of the stacks that still run: those of its fixtures."""
    report = yield
    if report.failed:
        report.sections += [(f"stack at {each.url}", each.describe()) for each in open_stacks]
    return report


@pytest.fixture(autouse=True)
def awake(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting.stay_awake(monkeypatch)


@pytest.fixture(autouse=True)
def the_projection_is_the_fold(request: pytest.FixtureRequest) -> Iterator[None]:
    """Of every execution in every database of the test, once that has ended: see `tests/postgres.py`."""
    inspection.excepted = request.node.get_closest_marker("corrupts") is not None
    yield
    inspection.excepted = False


@pytest.fixture(scope="session")
def api() -> Iterator[Api]:
    """The API to test against: one process for all tests that ask for it."""
    with run_api() as made:
        yield made


def pytest_collection_finish() -> None:
    """The collected tests stay until the end, so no collection of garbage needs to look at them."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """One of several processes hands its sizes on; the last one judges."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["result_sizes"] = dict(inspection.sizes)
    elif (
        inspection.sizes.total() >= inspection.ENOUGH
        and inspection.percentile(0.99) >= inspection.P99
    ):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    inspection.sizes.update(getattr(node, "workeroutput", {}).get("result_sizes", {}))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if count := inspection.sizes.total():
        verdict = f"p99 {inspection.percentile(0.99)} bytes (less than {inspection.P99}) over {count} results"
        terminalreporter.write_line(f"event.result: {verdict}")

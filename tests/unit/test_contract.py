"""The import contract of `pyproject.toml` holds, and it bites: a copy of the package with a forbidden import fails it.

Beside imports, one rule that an import contract cannot express: wall clocks, entropy and sleeping are for adapters only.
"""

import ast
import asyncio
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop

from tests.waiting import run_virtually

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "noetl"


def lint_imports(where: Path) -> subprocess.CompletedProcess[str]:
    """The contract, checked on the package below `where`."""
    run = "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())"
    environment = {**os.environ, "PYTHONPATH": str(where), "COLUMNS": "200", "NO_COLOR": "1"}
    arguments = ["--config", str(ROOT / "pyproject.toml"), "--no-cache"]
    return subprocess.run(
        [sys.executable, "-c", run, *arguments],
        cwd=where,
        env=environment,
        capture_output=True,
        text=True,
    )


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copytree(SOURCE, tmp_path / "noetl", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def test_the_package_keeps_the_contract() -> None:
    outcome = lint_imports(ROOT / "src")
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


FORBIDDEN = {
    "engine": [
        "asyncio", "time", "random", "uuid", "datetime", "os", "socket", "threading", "secrets", "subprocess",
        "noetl.log", "noetl.bus", "noetl.results", "noetl.leases", "noetl.catalog", "noetl.server", "noetl.worker",
        "noetl.tools", "noetl.faults", "noetl.log.stores",
    ],
    "playbook": ["asyncio", "time", "random", "uuid", "noetl.engine", "noetl.log", "noetl.tools"],
    "model": ["asyncio", "time", "random", "uuid", "noetl.playbook", "noetl.engine", "noetl.log"],
    "log": ["noetl.engine", "noetl.playbook", "noetl.leases", "noetl.server"],
    "leases": ["noetl.log"],
    "bus": ["noetl.log"],
    "results": ["noetl.log", "noetl.playbook", "noetl.tools"],
    "catalog": ["noetl.log", "noetl.playbook"],
    "tools": ["noetl.engine", "noetl.log", "noetl.pipeline", "noetl.worker", "noetl.server"],
    "pipeline": ["noetl.engine", "noetl.log", "noetl.worker", "noetl.server"],
    "worker": ["noetl.engine", "noetl.log", "noetl.leases", "noetl.server", "noetl.runtime", "noetl.client", "noetl.cli"],
    "server": ["noetl.worker", "noetl.tools", "noetl.pipeline", "noetl.results", "noetl.runtime", "noetl.client", "noetl.cli"],
    "runtime": ["noetl.client", "noetl.cli"],
    "client": ["noetl.cli"],
}  # fmt: skip


def test_a_forbidden_import_breaks_the_contract(copy: Path) -> None:
    """One file per forbidden import, all in one copy: the report must name every one of them."""
    expected = set()
    for package, targets in FORBIDDEN.items():
        for number, target in enumerate(targets):
            (copy / "noetl" / package / f"_bad{number}.py").write_text(f"import {target}\n")
            expected.add((f"noetl.{package}._bad{number}", target))

    outcome = lint_imports(copy)

    found = set(re.findall(r"(noetl\.\w+\._bad\d+) -> ([\w.]+)", outcome.stdout))
    assert outcome.returncode != 0
    assert expected - found == set(), outcome.stdout + outcome.stderr


@pytest.mark.parametrize("target", ["asyncio", "noetl.log", "time", "random", "uuid"])
def test_the_engine_alone_cannot_import(copy: Path, target: str) -> None:
    (copy / "noetl" / "engine" / "_bad.py").write_text(f"import {target}\n")
    outcome = lint_imports(copy)
    assert outcome.returncode == 1
    assert f"noetl.engine._bad -> {target}" in outcome.stdout, outcome.stdout + outcome.stderr


def test_an_import_through_another_module_is_seen(copy: Path) -> None:
    """The engine may not reach a clock by way of the language either."""
    (copy / "noetl" / "playbook" / "_clock.py").write_text("import time\n")
    (copy / "noetl" / "engine" / "_bad.py").write_text("import noetl.playbook._clock\n")
    outcome = lint_imports(copy)
    assert outcome.returncode == 1
    assert "noetl.playbook._clock -> time" in outcome.stdout


# ---- clocks, entropy, sleeping -----------------------------------------------------------------------------------------

IMPURE = {
    "time.time", "time.time_ns", "time.monotonic", "time.monotonic_ns", "time.perf_counter", "time.perf_counter_ns",
    "time.sleep", "datetime.now", "datetime.utcnow", "datetime.today", "date.today", "uuid.uuid1", "uuid.uuid4",
    "uuid4", "uuid1", "os.urandom", "secrets.token_hex", "secrets.token_bytes", "secrets.token_urlsafe",
}  # fmt: skip

# Adapters: what talks to the world on behalf of the rest, and takes the world's time with it.
ADAPTERS = (
    "cli/",  # a person's terminal
    "tools/",  # the user's own work
    "embedded/",
    "settings.py",
    "server/http/depends.py",  # the wire: when a request came
    "server/http/guard.py",  # the wire: measures requests
    "server/workers/routes.py",
    "server/accounts/service.py",  # tokens
    "server/accounts/users.py",  # ids of users
    "server/oidc/provider.py",  # checks when what an issuer says expires
    "server/oidc/service.py",  # secrets of sign-ins
    "server/audit/call_origin.py",  # a request without an id gets one
    "server/credentials/ciphers.py",  # nonces
    "server/credentials/sealing.py",  # keys
    "server/pages/answers.py",  # a nonce for each answer
    "server/executions/request_outcomes.py",  # a request without a key gets one
    "spark/commits.py",  # how old what others left behind is
    "spark/step/folders.py",  # how old what others left behind is
    "spark/jobs/lake_objects.py",  # names of staging folders that nobody else takes
    "spark/client/progress.py",  # hears from Spark: progress is told now and then
    "spark/client/publishing.py",  # how old records of earlier calls are
    "spark/server/process.py",  # looks after a JVM
    "spark/server/server_start.py",
    "spark/tasks/shard.py",  # a task of Spark wires its pipeline here
    "spark/step/tickets.py",  # keys and nonces
    "time_slice.py",  # measures how long somebody computes
    "runtime/",  # processes are wired here
)


def impure_calls(source: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(value=ast.Name(id=module), attr=name):
                if f"{module}.{name}" in IMPURE or module == "random":
                    yield node.lineno, f"{module}.{name}"
            case ast.Attribute(value=ast.Attribute(attr=module), attr=name) if (
                f"{module}.{name}" in IMPURE
            ):
                yield node.lineno, f"{module}.{name}"
            case ast.ImportFrom(
                module="time" | "random" | "uuid" | "secrets" as module, names=names
            ):
                for alias in names:
                    if f"{module}.{alias.name}" in IMPURE or module == "random":
                        yield node.lineno, f"{module}.{alias.name}"


def test_only_adapters_read_a_clock_draw_or_sleep() -> None:
    found = [
        f"{path.relative_to(SOURCE)}:{line}: {what}"
        for path in sorted(SOURCE.rglob("*.py"))
        if not path.relative_to(SOURCE).as_posix().startswith(ADAPTERS)
        for line, what in impure_calls(path.read_text(encoding="utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "import time\ntime.time()",
        "from time import monotonic",
        "import datetime\ndatetime.datetime.now()",
        "from datetime import datetime\ndatetime.now()",
        "import uuid\nuuid.uuid4()",
        "from uuid import uuid4",
        "import random\nrandom.random()",
        "from random import choice",
        "clock = time.monotonic",
    ],
)
def test_the_rule_sees(source: str) -> None:
    assert list(impure_calls(source))


def test_the_rule_lets_pass_what_only_looks_alike() -> None:
    assert not list(impure_calls("clock.now(); self.time(); event.at; rng.random()"))


# ---- no test sleeps ----------------------------------------------------------------------------------------------------


def borrowed_sleeps(source: str) -> list[int]:
    """Lines that take `sleep` out of its module, past the watch of `tests.waiting`."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom) and node.module in {"time", "asyncio", "asyncio.tasks"}
        if any(alias.name == "sleep" for alias in node.names)
    ]


def test_no_test_sleeps() -> None:
    """A test that waits for another process uses `tests.waiting`; nothing else has a reason to let time pass. That
    `time.sleep` and `asyncio.sleep` are refused while a test runs is seen to below; no file gets around it."""
    sleeping = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if path not in (Path(__file__), ROOT / "tests" / "waiting.py")
        for source in [path.read_text(encoding="utf-8")]
        if "sleep" in source
        for line in [
            *(line for line, what in impure_calls(source) if what == "time.sleep"),
            *borrowed_sleeps(source),
        ]
    ]
    assert sleeping == []


def test_sleeping_is_refused_while_a_test_runs() -> None:
    with pytest.raises(pytest.fail.Exception, match="a test sleeps"):
        time.sleep(0.001)
    with pytest.raises(pytest.fail.Exception, match="a test sleeps"):
        asyncio.run(asyncio.sleep(0.001))
    with pytest.raises(pytest.fail.Exception, match="a test sleeps"):
        uvloop.run(asyncio.sleep(0.001))
    assert borrowed_sleeps("from asyncio import gather, sleep") == [1]


def test_virtual_time_may_pass() -> None:
    asyncio.run(asyncio.sleep(0))
    run_virtually(asyncio.sleep(100))

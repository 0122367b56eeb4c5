"""Who starts the server, who attaches, when it ends, and what it survives."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from noetl.embedded import ensure, stop
from noetl.embedded.postgres import EmbeddedPostgres
from tests.integration.embedded.home_users import HomeUser, parent, postmaster, wait_until_closed
from tests.postgres import Postgres
from tests.waiting import HANG_LIMIT_S, until

Start = Callable[[Path], HomeUser]


def answers(dsn: str) -> bool:
    try:
        return one(dsn, "SELECT 1") == 1
    except psycopg.OperationalError:
        return False


def one(dsn: str, statement: str) -> object:
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute(statement).fetchone()
        return row and row[0]


def do(dsn: str, statement: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(statement)


def test_the_first_process_starts_it_and_the_second_attaches(home: Path, process: Start) -> None:
    first, second = process(home), process(home)
    dsn = first.ask()
    server = postmaster(home).pid

    assert second.ask() == dsn
    assert postmaster(home).pid == server
    assert parent(server) == first.popen.pid
    assert one(dsn, "SELECT 1") == 1


def test_four_processes_at_once_make_one_home_and_one_server(
    tmp_path: Path, process: Start
) -> None:
    home = tmp_path / "home"
    processes = [process(home) for _ in range(4)]
    for each in processes:
        each.begin()

    assert len({each.answer() for each in processes}) == 1
    assert parent(postmaster(home).pid) in {each.popen.pid for each in processes}
    assert sorted(path.name for path in home.iterdir()) == [
        "postgres",
        "postgres.lock",
        "postgres.log",
    ]
    assert (home / "postgres.log").read_text().count("ready to accept connections") == 1


def test_it_ends_when_its_parent_is_killed(home: Path, process: Start) -> None:
    starter = process(home)
    starter.ask()
    starter.kill()

    wait_until_closed(home)


def test_whoever_outlives_the_starter_starts_it_again_at_the_same_address(
    home: Path, process: Start
) -> None:
    starter, other = process(home), process(home)
    dsn = starter.ask()
    other.ask()
    do(dsn, "CREATE TABLE IF NOT EXISTS kept AS SELECT 1 AS x")
    starter.kill()
    wait_until_closed(home)

    assert other.ask() == dsn
    assert parent(postmaster(home).pid) == other.popen.pid
    assert one(dsn, "SELECT count(*) > 0 FROM kept")


def test_a_starter_killed_while_it_starts_leaves_nothing_in_the_way(
    home: Path, process: Start
) -> None:
    for _ in range(3):
        starter, other = process(home), process(home)
        starter.begin()
        until(lambda: (home / "postgres" / "data" / "postmaster.pid").exists())
        other.begin()
        starter.kill()
        other.answer()
        until(
            lambda other=other: answers(other.ask())
        )  # the one it attached to may just have been about to end
        other.kill()
        wait_until_closed(home)


def test_a_home_whose_maker_is_killed_is_made_by_the_next(tmp_path: Path, process: Start) -> None:
    home = tmp_path / "home"
    maker = process(home)
    maker.begin()
    until(lambda: home.exists() and any(home.glob(".postgres-*/data/base")))
    maker.kill()

    assert one(process(home).ask(), "SELECT 1") == 1
    assert sorted(path.name for path in home.iterdir()) == [
        "postgres",
        "postgres.lock",
        "postgres.log",
    ]


def test_a_killed_postmaster_comes_back_with_its_data(
    home: Path, embedded: EmbeddedPostgres
) -> None:
    dsn = embedded.ensure_postgres().control
    do(dsn, "CREATE TABLE survived AS SELECT 42 AS x")
    for _ in range(10):
        with psycopg.connect(dsn, autocommit=True) as session:
            killed = postmaster(home).pid
            os.kill(killed, signal.SIGKILL)
            with pytest.raises(psycopg.OperationalError):
                session.execute("SELECT pg_sleep(10)")
            assert (
                embedded.ensure_postgres().control == dsn
            )  # asked for by one who lost his session, without a pause
        assert postmaster(home).pid != killed
        assert one(dsn, "SELECT x FROM survived") == 42


def test_a_postmaster_that_is_about_to_die_is_waited_for_and_replaced(
    home: Path, embedded: EmbeddedPostgres
) -> None:
    """Its signal may be on its way for a while: it looks alive, and answers nobody any more."""
    dsn = embedded.ensure_postgres().control
    dying = postmaster(home).pid
    os.kill(dying, signal.SIGSTOP)
    with ThreadPoolExecutor() as threads:
        asked = threads.submit(embedded.ensure_postgres)
        with pytest.raises(TimeoutError):
            asked.result(0.3)
        os.kill(dying, signal.SIGKILL)
        assert asked.result(HANG_LIMIT_S).control == dsn
    assert postmaster(home).pid != dying
    assert one(dsn, "SELECT 1") == 1


@pytest.mark.parametrize("whose", ["anybody", "another server"])
def test_a_leftover_pid_that_somebody_else_has_now_is_forgotten(
    home: Path, embedded: EmbeddedPostgres, postgres: Postgres, whose: str
) -> None:
    pid = os.getpid() if whose == "anybody" else postmaster(postgres.embedded.home).pid
    leftover = home / "postgres" / "data" / "postmaster.pid"
    leftover.write_text(f"{pid}\n/nowhere\n1\n5432\n\n127.0.0.1\n\nready\n")

    assert one(embedded.ensure_postgres().control, "SELECT 1") == 1
    assert postmaster(home).pid != pid


def test_another_port_is_taken_when_the_last_one_is_in_use(
    home: Path, embedded: EmbeddedPostgres
) -> None:
    embedded.ensure_postgres()
    last = postmaster(home).port
    embedded.stop_postgres()
    with socket.socket() as squatter:
        squatter.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        squatter.bind(("127.0.0.1", last))
        squatter.listen()

        assert one(embedded.ensure_postgres().control, "SELECT 1") == 1
        assert postmaster(home).port != last


def test_a_port_lost_between_looking_and_starting_is_replaced(
    home: Path, embedded: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as squatter:
        squatter.bind(("127.0.0.1", 0))
        squatter.listen()
        taken = squatter.getsockname()[1]
        monkeypatch.setattr(
            "noetl.embedded.postgres.find_free_ports", lambda last: iter([taken, last])
        )

        assert one(embedded.ensure_postgres().control, "SELECT 1") == 1


def test_ctrl_c_at_the_terminal_is_not_for_the_server(
    home: Path, embedded: EmbeddedPostgres
) -> None:
    embedded.ensure_postgres()
    assert os.getsid(postmaster(home).pid) != os.getsid(0)


def test_it_outlives_the_event_loop_and_ends_on_request(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NOETL_DB_URL", raising=False)
    monkeypatch.setenv("NOETL_HOME", str(home))
    dsns = asyncio.run(ensure())
    server = postmaster(home).pid
    assert asyncio.run(ensure()) == dsns
    assert postmaster(home).pid == server

    asyncio.run(stop())
    wait_until_closed(home)


def test_stop_leaves_the_server_of_another_process_alone(home: Path, process: Start) -> None:
    dsn = process(home).ask()
    attached = EmbeddedPostgres(home)
    attached.ensure_postgres()
    attached.stop_postgres()

    assert one(dsn, "SELECT 1") == 1


def test_the_loop_goes_on_while_the_server_starts(embedded: EmbeddedPostgres) -> None:
    async def scenario() -> int:
        starting, ticks = asyncio.create_task(embedded.ensure()), 0
        while not starting.done():
            await asyncio.sleep(0)
            ticks += 1
        await starting
        return ticks

    assert asyncio.run(scenario()) > 3


def test_idle_it_is_small(home: Path, embedded: EmbeddedPostgres) -> None:
    embedded.ensure_postgres()
    server = postmaster(home).pid
    family = [
        server,
        *(int(path.name) for path in Path("/proc").glob("[0-9]*") if parent_of(path) == server),
    ]

    assert len(family) <= 5
    assert sum(proportional_kb(pid) for pid in family) < 50_000


def parent_of(path: Path) -> int | None:
    try:
        return parent(int(path.name))
    except OSError:
        return None


def proportional_kb(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def test_where_the_kernel_does_not_tie_a_shell_watches() -> None:
    victim = subprocess.Popen(["sleep", "60"])
    code = (
        "import sys, time; from noetl.embedded.process import start_watcher; "
        "w = start_watcher(int(sys.argv[1])); print(); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-u", "-c", code, str(victim.pid)], stdout=subprocess.PIPE
    ) as watched:
        assert watched.stdout is not None
        watched.stdout.readline()
        watched.kill()
    assert victim.wait(HANG_LIMIT_S) == -signal.SIGINT

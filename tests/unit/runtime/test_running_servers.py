"""How commands find the servers of a home: by the lock files of live processes."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from noetl.runtime.lock_files import LockFile, read_boot_id
from noetl.runtime.running_servers import FOLDER, LockedServer, find_local_address


@contextmanager
def run_server(home: Path, name: str, address: str | None, setting: str = "") -> Iterator[LockFile]:
    file = LockFile(home / FOLDER, name)
    boot = read_boot_id() or ""
    file.acquire(
        LockedServer(
            boot=boot, database="d", runtime_id=1, address=address, database_setting=setting
        )
    )
    yield file
    file.release()  # as the kernel does when a process is killed: the file stays


def test_the_newest_server_that_runs_is_found(tmp_path: Path) -> None:
    with ExitStack() as servers:
        servers.enter_context(run_server(tmp_path, "b", "http://127.0.0.1:1"))
        servers.enter_context(run_server(tmp_path, "a", "http://127.0.0.1:2"))
        assert find_local_address(tmp_path, "") == "http://127.0.0.1:2"


def test_a_server_that_was_killed_is_not_found(tmp_path: Path) -> None:
    with run_server(tmp_path, "a", "http://127.0.0.1:1") as file:
        assert find_local_address(tmp_path, "") == "http://127.0.0.1:1"
    assert file.path.exists()
    assert find_local_address(tmp_path, "") is None


def test_a_process_that_answers_no_requests_is_not_found(tmp_path: Path) -> None:
    with run_server(tmp_path, "a", None):
        assert find_local_address(tmp_path, "") is None


def test_a_server_of_another_database_is_not_found(tmp_path: Path) -> None:
    with run_server(tmp_path, "a", "http://127.0.0.1:1", setting="other"):
        assert find_local_address(tmp_path, "") is None
        assert find_local_address(tmp_path, "other") == "http://127.0.0.1:1"


def test_a_home_without_servers(tmp_path: Path) -> None:
    assert find_local_address(tmp_path / "none", "") is None

"""Lock files of workers: which of them prove that a worker is gone."""

import asyncio
from pathlib import Path

import pytest

from noetl.runtime import lock_files
from noetl.runtime.worker_locks import WorkerLocks, lock_worker


def leave_dead_worker(home: Path, worker: str = "w", incarnation: str = "life1") -> None:
    """The file of a worker that ended with commands."""
    with lock_worker(home, worker, incarnation):
        pass


def find_dead(home: Path) -> list[str]:
    return asyncio.run(WorkerLocks(home).find_dead_holders())


def test_worker_that_runs_is_not_dead(tmp_path: Path) -> None:
    with lock_worker(tmp_path, "w", "life1"):
        assert find_dead(tmp_path) == []


def test_worker_that_ended_with_commands_is_dead(tmp_path: Path) -> None:
    leave_dead_worker(tmp_path)
    assert find_dead(tmp_path) == ["w/life1"]


def test_worker_that_ended_without_commands_leaves_nothing(tmp_path: Path) -> None:
    with lock_worker(tmp_path, "w", "life1") as lock:
        lock.is_drained = True
    assert list((tmp_path / "workers").iterdir()) == []


def test_two_servers_see_the_same_dead_worker(tmp_path: Path) -> None:
    leave_dead_worker(tmp_path)
    assert find_dead(tmp_path) == find_dead(tmp_path) == ["w/life1"]
    for _ in range(2):
        asyncio.run(WorkerLocks(tmp_path).forget("w/life1"))
    assert find_dead(tmp_path) == []


def test_worker_with_spooled_reports_is_left_to_the_next_of_its_name(tmp_path: Path) -> None:
    leave_dead_worker(tmp_path)
    spool = tmp_path / "spool" / "w"
    spool.mkdir(parents=True)
    report = spool / "000000000000-abc.report"
    report.touch()
    assert find_dead(tmp_path) == []
    report.unlink()
    assert find_dead(tmp_path) == ["w/life1"]


def test_file_of_another_machine_proves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other_boot = tmp_path / "boot_id"
    other_boot.write_text("another boot\n")
    with monkeypatch.context() as patched:
        patched.setattr(lock_files, "BOOT_ID_FILE", other_boot)
        leave_dead_worker(tmp_path)
    assert find_dead(tmp_path) == []


def test_system_without_a_boot_id_proves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock_files, "BOOT_ID_FILE", tmp_path / "missing")
    leave_dead_worker(tmp_path)
    assert find_dead(tmp_path) == []


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"worker": "w"}'])
def test_file_that_is_not_ours_proves_nothing(tmp_path: Path, content: bytes) -> None:
    folder = tmp_path / "workers"
    folder.mkdir()
    (folder / "torn.lock").write_bytes(content)
    (folder / "life1.draft").write_bytes(content)
    assert find_dead(tmp_path) == []


def test_home_that_cannot_be_written_to_stops_no_worker(tmp_path: Path) -> None:
    (tmp_path / "workers").touch()
    with lock_worker(tmp_path, "w", "life1"):
        assert find_dead(tmp_path) == []

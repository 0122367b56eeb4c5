"""Files come into a folder all or none, whenever the process that brings them is killed."""

import itertools
import json
import os
import signal
import sys
import traceback
from pathlib import Path

import pytest
from msgspec import to_builtins

from noetl.spark.commits import HIDDEN_FOLDER, CommitTarget, finish_pending_commits, list_data_files
from noetl.spark.errors import LocatedError
from noetl.spark.messages import FrameManifest
from noetl.spark.paths import check_output_path

KEY, OTHER = "a" * 32, "b" * 32
ANSWER = FrameManifest(["n"], {}, [], path="lake", rows=2)
SCHEMA_OF_ROWS = {"type": "struct", "fields": []}
OLD = {"day=a": "old", "day=b": "old"}
AFTER = {
    "append": [("day=a", "old"), ("day=b", "new"), ("day=b", "old"), ("day=c", "new")],
    "overwrite": [("day=b", "new"), ("day=c", "new")],
    "overwrite_partitions": [("day=a", "old"), ("day=b", "new"), ("day=c", "new")],
}


def list_seen(folder: Path) -> list[tuple[str, str]]:
    """What readers see."""
    return sorted((path.parent.name, path.read_text()) for path in list_data_files(folder))


def fill_folder(folder: Path) -> Path:
    for day, text in OLD.items():
        (folder / day).mkdir(parents=True)
        (folder / day / "part-00000-old.snappy.parquet").write_text(text)
    return folder


def commit(folder: Path, mode: str, fatal: int) -> int:
    """In a process that ends itself before the nth change that it makes to the folder (0: it does not); how it ended."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        _commit(folder, mode, fatal)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def _commit(folder: Path, mode: str, fatal: int) -> None:
    changes = itertools.count(1)

    def note_event(event: str, args: tuple[object, ...]) -> None:
        is_change = event in ("os.rename", "os.remove", "os.rmdir", "os.mkdir") and str(
            args[0]
        ).startswith(str(folder))
        if is_change and next(changes) == fatal:
            os.kill(os.getpid(), signal.SIGKILL)

    target = CommitTarget(folder, KEY, mode, "parquet", ["day"])
    staging = target.make_staging("session")
    for name in ("day=b/part-00000-x.parquet", "day=c/part-00001-x.parquet"):
        path = staging / name
        path.parent.mkdir(parents=True)
        path.write_text("new")
    sys.addaudithook(note_event)
    target.commit(staging, ANSWER, SCHEMA_OF_ROWS, lambda: None)


@pytest.mark.parametrize("mode", AFTER)
def test_a_commit_that_is_killed_anywhere_is_nothing_or_all(tmp_path: Path, mode: str) -> None:
    before = sorted(OLD.items())
    states = set()
    for fatal in itertools.count(1):
        folder = fill_folder(tmp_path / f"killed-{fatal}")
        if commit(folder, mode, fatal) == 0:
            break
        left = list_seen(folder)
        present = [row for row in before if row in left]
        assert present == before or set(left) >= {
            ("day=b", "new"),
            ("day=c", "new"),
        }  # the old rows, or all of the new
        finish_pending_commits(folder)
        states.add(
            "before"
            if list_seen(folder) == before
            else "after"
            if list_seen(folder) == AFTER[mode]
            else "neither"
        )
        is_recorded = (
            CommitTarget(folder, OTHER, mode, "parquet", ["day"]).read_recorded_schema()
            == SCHEMA_OF_ROWS
        )
        assert is_recorded == (list_seen(folder) != before)
        assert commit(folder, mode, 0) == 0  # the same call again
        assert list_seen(folder) == AFTER[mode]
    assert states == {"before", "after"}
    assert list_seen(folder) == AFTER[mode]


def test_columns_are_compared_again_before_the_commit(tmp_path: Path) -> None:
    """Others may have written since: nothing moves when their columns are other ones."""
    target = CommitTarget(tmp_path, KEY, "append", "parquet")
    staging = target.make_staging("session")
    staging.mkdir()
    (staging / "part-00000-x.parquet").write_text("new")

    def refuse() -> None:
        raise LocatedError("output", ValueError("other columns"))

    with pytest.raises(LocatedError):
        target.commit(staging, ANSWER, SCHEMA_OF_ROWS, refuse)
    assert list_seen(tmp_path) == []
    assert target.find_recorded_answer() is None


def test_the_next_writer_finishes_what_another_has_committed(tmp_path: Path) -> None:
    folder = fill_folder(tmp_path / "lake")
    staged = folder / HIDDEN_FOLDER / "aaaaaaaaaaaaaaaa-x" / "day=c" / "part-00000-x.parquet"
    staged.parent.mkdir(parents=True)
    staged.write_text("new")
    record = {
        "moves": {str(staged.relative_to(folder)): "day=c/aaaaaaaaaaaaaaaa-00000.parquet"},
        "removes": ["day=a/part-00000-old.snappy.parquet"],
        "answer": to_builtins(ANSWER),
    }
    (folder / HIDDEN_FOLDER / "aaaaaaaaaaaaaaaa.pending").write_text(json.dumps(record))
    other = CommitTarget(folder, OTHER, "append", "parquet", ["day"])
    assert other.find_recorded_answer() is None
    assert list_seen(folder) == [("day=b", "old"), ("day=c", "new")]
    assert CommitTarget(folder, KEY, "append", "parquet", ["day"]).find_recorded_answer() == ANSWER


def test_what_was_committed_and_has_vanished_is_said(tmp_path: Path) -> None:
    hidden = tmp_path / HIDDEN_FOLDER
    hidden.mkdir()
    record = {
        "moves": {f"{HIDDEN_FOLDER}/a-x/part-0.parquet": "a-0.parquet"},
        "removes": [],
        "answer": to_builtins(ANSWER),
    }
    (hidden / "a.pending").write_text(json.dumps(record))
    with pytest.raises(LocatedError) as raised:
        finish_pending_commits(tmp_path)
    assert "was committed to this folder and is gone" in str(raised.value.error)


def test_records_and_what_killed_tries_left_are_swept_when_they_are_old(tmp_path: Path) -> None:
    folder = fill_folder(tmp_path / "lake")
    hidden = folder / HIDDEN_FOLDER
    (hidden / "cccccccccccccccc-dead").mkdir(parents=True)
    for name in ("cccccccccccccccc.done", "dddddddddddddddd.done"):
        (hidden / name).write_text("{}")
    for name in ("cccccccccccccccc-dead", "cccccccccccccccc.done"):
        os.utime(hidden / name, (0, 0))
    assert commit(folder, "append", 0) == 0
    left = {path.name for path in hidden.iterdir()}
    assert left == {"lock", "schema.json", "aaaaaaaaaaaaaaaa.done", "dddddddddddddddd.done"}


def test_a_killed_process_was_killed(tmp_path: Path) -> None:
    """The tests above mean nothing if it never is."""
    assert commit(fill_folder(tmp_path / "lake"), "append", 1) == -signal.SIGKILL


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/tmp",
        "/etc/lake",
        "/usr",
        "~",
        "~/..",
        ".",
        "..",
        "{home}",
        "{home}/x",
        "{results}",
        "{results}/1",
    ],
)
def test_folders_that_hold_more_than_rows_are_refused(path: str, tmp_path: Path) -> None:
    own = {"home": tmp_path / "home", "results": tmp_path / "store" / "results"}
    full = os.path.abspath(os.path.expanduser(path.format(**own)))
    for spelling in (full, f"file://{full}", f"{full}/"):
        with pytest.raises(Exception, match="output: "):
            check_output_path(spelling, own.values())


def test_a_link_does_not_hide_such_a_folder(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/")
    with pytest.raises(Exception, match="holds much besides"):
        check_output_path(str(tmp_path / "link"), [])


@pytest.mark.parametrize(
    "path", ["/data/lake", "{tmp}/lake", "s3a://bucket/lake", "hdfs://name/lake"]
)
def test_other_folders_may_be_written(path: str, tmp_path: Path) -> None:
    check_output_path(path.format(tmp=tmp_path), [tmp_path / "home"])


@pytest.mark.parametrize("path", ["s3a://bucket", "s3a://bucket/", "hdfs:///"])
def test_a_whole_store_is_refused(path: str) -> None:
    with pytest.raises(Exception, match="is a whole store"):
        check_output_path(path, [])

"""Puts the files of a step into a folder of the user: all of them or none, once per call.

    <folder>/.noetl/<call>-<session>/   staging: Spark writes here; readers skip hidden folders
    <folder>/.noetl/<call>.pending      the commit: files to add, files to remove, the answer
    <folder>/.noetl/<call>.done         the answer; a retry of the call only returns it
    <folder>/.noetl/schema.json         the columns of the last commit, in Spark's JSON form

The commit is the rename that makes the pending record. Before it, nothing visible has changed.
After it, the record lists all that is left to do, and the next process does it: a retry of the
call, another writer of this folder, or a Spark step that reads it. New files are added before old
ones are removed, so every old row can be read until the new rows are complete. Only files with
names that Spark jobs give are ever removed.
"""

import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote

from msgspec import Struct
from msgspec.structs import replace

from noetl.spark.errors import ImpossibleRequest, LocatedError
from noetl.spark.messages import FileFacts, FrameManifest, decode_message, encode_message
from noetl.spark.paths import find_format_by_name

HIDDEN_FOLDER = ".noetl"
PENDING_SUFFIX, DONE_SUFFIX = ".pending", ".done"
SCHEMA_FILE = "schema.json"
RECORD_KEPT_S = 7 * 86_400.0  # no call is retried after this time
MAX_NAMED_FILES = 3  # files that an error names
# Formats that have no table log: a folder of files is the whole data set.
FILE_FORMATS = frozenset(("parquet", "csv", "json", "orc", "text", "avro", "xml"))
TABLE_LOGS = ("_delta_log", ".hoodie", "metadata")  # folders of tables that list their files
_SPARK_FILE = re.compile(r"([0-9a-f]{16}-\d{5}|part-\d{5}-).*")
_COMMITTED_FILE = re.compile(r"[0-9a-f]{16}-\d{5}\b.*")
_CALL_DIGITS = 16


class CommitRecord(Struct, frozen=True, omit_defaults=True):
    """A pending commit: staged files and where they go, files to remove, and the answer."""

    moves: dict[str, str]
    removes: list[str]
    answer: FrameManifest
    schema: dict[str, Any] | None = None  # older releases do not record it


class DoneRecord(Struct, frozen=True):
    """A call that is done, and its answer."""

    answer: FrameManifest


@dataclass(frozen=True, slots=True)
class CommitTarget:
    """A folder that one call writes to, with its mode and format."""

    folder: Path
    key: str
    mode: str
    format: str
    partition_by: Sequence[str] = ()

    @property
    def call(self) -> str:
        return self.key[:_CALL_DIGITS]

    def find_recorded_answer(self) -> FrameManifest | None:
        """The answer of this call if it has been committed before, else None."""
        finish_pending_commits(self.folder)
        return _read_done(self.folder, self.call)

    def has_data(self) -> bool:
        return any(not self._is_own_file(path) for path in list_data_files(self.folder))

    def check_target(self) -> None:
        """Refuse a target that cannot take the rows, before Spark computes them."""
        if self.folder.exists() and not self.folder.is_dir():
            raise _make_target_error(f"{self.folder} is a file, and Spark writes folders")
        for name in TABLE_LOGS:
            if _is_table_log(self.folder / name):
                raise _make_target_error(
                    f"{self.folder} is a table with a log of its own ({name}); write to it with its format"
                )
        if self.mode == "error" and self.has_data():
            raise _make_target_error(f"{self.folder} holds data already (mode: error)")
        if self.mode == "overwrite":
            self._refuse_foreign_files(self.folder)
        else:
            self._check_layout()

    def find_sample_file(self) -> Path | None:
        """A file that stays and is not empty: it gives the existing columns. None if none stays."""
        if self.mode == "overwrite":
            return None
        for path in list_visible_files(self.folder):
            if find_format_by_name(path.name) != self.format or self._is_own_file(path):
                continue
            if path.stat().st_size:
                return path
        return None

    def read_recorded_schema(self) -> dict[str, Any] | None:
        """The schema of the last commit. None if the folder holds no file of a commit."""
        names = [path.name for path in list_visible_files(self.folder)]
        if not any(_COMMITTED_FILE.fullmatch(name) for name in names):
            return None
        try:
            text = (self.folder / HIDDEN_FOLDER / SCHEMA_FILE).read_bytes()
        except FileNotFoundError:
            return None
        schema: dict[str, Any] = json.loads(text)
        return schema

    def make_staging(self, session: str) -> Path:
        """A new staging folder for Spark.

        Removes what earlier tries of this call have left: their sessions have ended.
        """
        hidden = self.folder / HIDDEN_FOLDER
        for leftover in hidden.glob(f"{self.call}-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        hidden.mkdir(parents=True, exist_ok=True)
        return hidden / f"{self.call}-{session}"

    def commit(
        self,
        staging: Path,
        answer: FrameManifest,
        schema: dict[str, Any],
        check_columns: Callable[[], None],
    ) -> FrameManifest:
        """Commit the staged files. Returns the answer with its files, or the answer of an earlier
        try that has been committed meanwhile.

        `schema` is the schema of the rows. `check_columns` raises if another writer has written
        other columns meanwhile.
        """
        with _hold_folder_lock(self.folder):
            _finish_all_pending(self.folder)
            earlier_answer = _read_done(self.folder, self.call)
            if earlier_answer is not None:
                return earlier_answer
            if self.mode == "ignore" and self.has_data():
                return make_skipped_answer(answer)
            self.check_target()
            check_columns()
            record = self._make_commit_record(staging, answer, schema)
            _write_record(self.folder / HIDDEN_FOLDER / f"{self.call}{PENDING_SUFFIX}", record)
            _finish_commit(self.folder, self.call)
            _delete_old_records(self.folder)
        return record.answer

    def _make_commit_record(
        self, staging: Path, answer: FrameManifest, schema: dict[str, Any]
    ) -> CommitRecord:
        moves: dict[str, str] = {}
        files: list[FileFacts] = []
        for number, path in enumerate(list_written_files(staging)):
            suffix = path.name.partition(".")[2]
            target = path.relative_to(staging).parent / f"{self.call}-{number:05}.{suffix}"
            moves[str(path.relative_to(self.folder))] = str(target)
            size = path.stat().st_size
            files.append(FileFacts(str(self.folder / target), size))
        folders = {str(PurePosixPath(target).parent) for target in moves.values()}
        replaced = {
            str(path.relative_to(self.folder)) for path in self._list_replaced_files(folders)
        }
        removes = sorted(replaced - {*moves.values()})
        return CommitRecord(moves, removes, replace(answer, files=files), schema)

    def _list_replaced_files(self, folders: set[str]) -> list[Path]:
        """The files that the commit removes. `folders` are those that get new files."""
        if self.mode == "overwrite":
            return list_data_files(self.folder)
        own = [path for path in list_data_files(self.folder) if self._is_own_file(path)]
        if self.mode != "overwrite_partitions":
            return own
        for name in folders:
            self._refuse_foreign_files(self.folder / name)
        replaced = own
        for name in folders:
            replaced += list_data_files(self.folder / name)
        return replaced

    def _is_own_file(self, path: Path) -> bool:
        return path.name.startswith(f"{self.call}-")

    def _refuse_foreign_files(self, folder: Path) -> None:
        others = [path for path in list_visible_files(folder) if not _is_spark_file(path)]
        if others:
            names = _list_some_names(others, self.folder)
            raise _make_target_error(
                f"{folder} holds files that no Spark job wrote ({names}): they would stay beside the new "
                "rows; move them, or give another path"
            )

    def _check_layout(self) -> None:
        """The files that stay and the new ones must be readable as one data set."""
        files = [
            path
            for path in list_visible_files(self.folder)
            if find_format_by_name(path.name) is not None
        ]
        others = [path for path in files if find_format_by_name(path.name) != self.format]
        if others:
            names = _list_some_names(others, self.folder)
            raise _make_target_error(
                f"{self.folder} holds files of another format ({names}), and this step writes {self.format}"
            )
        wanted = [name.lower() for name in self.partition_by]
        for path in files:
            folders = path.relative_to(self.folder).parts[:-1]
            found = [unquote(name.partition("=")[0]).lower() for name in folders]
            if found != wanted:
                raise _make_target_error(
                    f"{self.folder} is partitioned by {', '.join(found) or 'nothing'}, and this step writes "
                    f"partition_by {', '.join(wanted) or 'nothing'}"
                )


def make_skipped_answer(answer: FrameManifest) -> FrameManifest:
    """The answer of a step with `mode: ignore` that found data at its path."""
    return replace(answer, rows=0, files=[], skipped=True)


def finish_pending_commits(folder: Path) -> None:
    """Finish commits that a dead process has left pending. Nearly always there are none; then
    this takes no lock."""
    if any((folder / HIDDEN_FOLDER).glob(f"*{PENDING_SUFFIX}")):
        with _hold_folder_lock(folder):
            _finish_all_pending(folder)


# ---- files -----------------------------------------------------------------------------------------------------------------


def list_written_files(folder: Path) -> list[Path]:
    """The files of committed tasks. A task that lost against a copy of itself may still write for
    a moment, below `_temporary`."""
    files = folder.rglob("part-*")
    return sorted(path for path in files if "_temporary" not in path.relative_to(folder).parts)


def list_visible_files(folder: Path) -> list[Path]:
    """The files that readers see. A link to a folder counts as a file: nothing behind it is ever
    removed."""
    found: list[Path] = []
    for parent, folders, files in os.walk(folder):
        links = [name for name in folders if os.path.islink(os.path.join(parent, name))]
        folders[:] = [name for name in folders if not _is_hidden(name)]
        found += [Path(parent, name) for name in (*files, *links) if not _is_hidden(name)]
    return sorted(found)


def list_data_files(folder: Path) -> list[Path]:
    """The visible files with names that Spark jobs give."""
    return [path for path in list_visible_files(folder) if _is_spark_file(path)]


def _is_spark_file(path: Path) -> bool:
    return _SPARK_FILE.fullmatch(path.name) is not None and not path.is_symlink()


def _is_hidden(name: str) -> bool:
    """Whether Spark's readers skip the name. `_day=1` is a partition, which they read."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def _is_table_log(path: Path) -> bool:
    if not path.is_dir():
        return False
    return path.name != "metadata" or any(path.glob("*.metadata.json"))


def _list_some_names(paths: list[Path], folder: Path) -> str:
    """The first paths, relative to the folder, for an error message."""
    names = [str(path.relative_to(folder)) for path in paths[:MAX_NAMED_FILES]]
    more = len(paths) - len(names)
    text = ", ".join(names)
    if more:
        text += f" and {more} more"
    return text


def _make_target_error(message: str) -> LocatedError:
    return LocatedError("output", ImpossibleRequest(message))


# ---- records ---------------------------------------------------------------------------------------------------------------


@contextmanager
def _hold_folder_lock(folder: Path) -> Iterator[None]:
    """Hold the lock of the folder: one commit runs at a time."""
    hidden = folder / HIDDEN_FOLDER
    hidden.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(hidden / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        with suppress(OSError):  # the file system has no locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _write_record(path: Path, record: CommitRecord | DoneRecord | dict[str, Any]) -> None:
    part = path.with_suffix(".part")
    part.write_bytes(encode_message(record))
    os.replace(part, path)


def _read_done(folder: Path, call: str) -> FrameManifest | None:
    """The recorded answer of a call, or None if the call is not done."""
    try:
        text = (folder / HIDDEN_FOLDER / f"{call}{DONE_SUFFIX}").read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return decode_message(text, DoneRecord).answer


def _finish_all_pending(folder: Path) -> None:
    for path in sorted((folder / HIDDEN_FOLDER).glob(f"*{PENDING_SUFFIX}")):
        _finish_commit(folder, path.stem)


def _finish_commit(folder: Path, call: str) -> None:
    """Do what the pending record of a call lists. Parts of it may have been done before."""
    hidden = folder / HIDDEN_FOLDER
    text = (hidden / f"{call}{PENDING_SUFFIX}").read_bytes()
    record = decode_message(text, CommitRecord)
    for staged, target in record.moves.items():
        _move_staged_file(folder / staged, folder / target)
    for name in record.removes:
        path = folder / name
        path.unlink(missing_ok=True)
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    if record.schema is not None:
        _write_record(hidden / SCHEMA_FILE, record.schema)
    _write_record(hidden / f"{call}{DONE_SUFFIX}", DoneRecord(record.answer))
    (hidden / f"{call}{PENDING_SUFFIX}").unlink()
    for leftover in hidden.glob(f"{call}-*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _move_staged_file(staged: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.replace(staged, target)
    except FileNotFoundError:
        if not target.exists():
            message = (
                f"{staged} was committed to this folder and is gone; write {target.parent} again"
            )
            raise LocatedError("output", ImpossibleRequest(message)) from None


def _delete_old_records(folder: Path) -> None:
    """Delete old records, and staging folders of tries that were killed before their commit."""
    oldest = time.time() - RECORD_KEPT_S
    for path in (folder / HIDDEN_FOLDER).iterdir():
        if path.suffix == PENDING_SUFFIX or path.name in ("lock", SCHEMA_FILE):
            continue
        if path.stat().st_mtime > oldest:
            continue
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)

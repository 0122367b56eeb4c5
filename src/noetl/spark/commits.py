"""Put the files of a step into a folder of the user's: all of them or none, once per call.

    <folder>/.noetl/<call>-<session>/   what Spark writes; no reader looks into hidden folders
    <folder>/.noetl/<call>.pending      the commit: which files come, which go, and what the step answers
    <folder>/.noetl/<call>.done         the same call again finds its answer here and writes nothing
    <folder>/.noetl/schema.json         the columns of the last commit, as Spark writes a schema

The commit is the rename that makes the pending record. Before it, nothing visible has changed. After it, the record says all
that is left to do, and whoever comes next does it: a retry of the call, another writer of this folder, or a Spark step that
reads it. New files come before old ones go, so every row that stood there can be read until the new ones are complete.
Only files that a Spark job has named are ever removed.
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

from noetl.spark.errors import Broken, Wrong
from noetl.spark.paths import format_named

HIDDEN_FOLDER = ".noetl"
PENDING, DONE = ".pending", ".done"
SCHEMA = "schema.json"
RECORD_KEPT_S = 7 * 86_400.0  # a call is not tried again after so long
MAX_NAMED = 3  # files that an error names
FILE_FORMATS = frozenset(
    ("parquet", "csv", "json", "orc", "text", "avro", "xml")
)  # a folder of files is all there is
TABLE_LOGS = ("_delta_log", ".hoodie", "metadata")  # of tables that know their files by a log
_SPARK_FILE = re.compile(r"([0-9a-f]{16}-\d{5}|part-\d{5}-).*")
_COMMITTED_FILE = re.compile(r"[0-9a-f]{16}-\d{5}\b.*")
_CALL_DIGITS = 16


@dataclass(frozen=True, slots=True)
class CommitTarget:
    """A folder, and how one call writes to it."""

    folder: Path
    key: str
    mode: str
    format: str
    partition_by: Sequence[str] = ()

    @property
    def call(self) -> str:
        return self.key[:_CALL_DIGITS]

    def recorded(self) -> dict[str, Any] | None:
        """What this call answered when it was committed before; None if it was not."""
        settle(self.folder)
        return _read_done(self.folder, self.call)

    def has_data(self) -> bool:
        return any(not self._is_own(path) for path in data_files(self.folder))

    def check(self) -> None:
        """Refuse what cannot end well, before Spark works for it."""
        if self.folder.exists() and not self.folder.is_dir():
            raise _refused(f"{self.folder} is a file, and Spark writes folders")
        if log := next((name for name in TABLE_LOGS if _is_table_log(self.folder / name)), None):
            raise _refused(
                f"{self.folder} is a table with a log of its own ({log}); write to it with its format"
            )
        if self.mode == "error" and self.has_data():
            raise _refused(f"{self.folder} holds data already (mode: error)")
        if self.mode == "overwrite":
            self._check_no_others(self.folder)
        else:
            self._check_fits()

    def sample_file(self) -> Path | None:
        """One that stays, with something in it: it says what columns there are. None: nothing stays."""
        if self.mode == "overwrite":
            return None
        files = (
            path for path in visible_files(self.folder) if format_named(path.name) == self.format
        )
        return next(
            (path for path in files if not self._is_own(path) and path.stat().st_size), None
        )

    def recorded_schema(self) -> dict[str, Any] | None:
        """Of the last commit; None when no file of a commit is there."""
        if not any(_COMMITTED_FILE.fullmatch(path.name) for path in visible_files(self.folder)):
            return None
        try:
            found: dict[str, Any] = json.loads((self.folder / HIDDEN_FOLDER / SCHEMA).read_bytes())
        except FileNotFoundError:
            return None
        return found

    def staging(self, session: str) -> Path:
        """A new folder for Spark. What earlier tries of this call have left is removed: their sessions have ended."""
        hidden = self.folder / HIDDEN_FOLDER
        for left in hidden.glob(f"{self.call}-*"):
            shutil.rmtree(left, ignore_errors=True)
        hidden.mkdir(parents=True, exist_ok=True)
        return hidden / f"{self.call}-{session}"

    def commit(
        self,
        staging: Path,
        answer: dict[str, Any],
        schema: dict[str, Any],
        check_columns: Callable[[], None],
    ) -> dict[str, Any]:
        """The answer with its files; that of an earlier try, if it was committed meanwhile. `schema` is that of the rows;
        `check_columns` refuses them if others have written other columns meanwhile."""
        with _locked(self.folder):
            _settle_all(self.folder)
            if (found := _read_done(self.folder, self.call)) is not None:
                return found
            if self.mode == "ignore" and self.has_data():
                return skipped(answer)
            self.check()
            check_columns()
            record = {**self._record(staging, answer), "schema": schema}
            _write_record(self.folder / HIDDEN_FOLDER / f"{self.call}{PENDING}", record)
            _finish(self.folder, self.call)
            _forget_old_records(self.folder)
        answered: dict[str, Any] = record["answer"]
        return answered

    def _record(self, staging: Path, answer: dict[str, Any]) -> dict[str, Any]:
        moves: dict[str, str] = {}
        files: list[dict[str, Any]] = []
        for number, path in enumerate(written_files(staging)):
            suffix = path.name.partition(".")[2]
            target = path.relative_to(staging).parent / f"{self.call}-{number:05}.{suffix}"
            moves[str(path.relative_to(self.folder))] = str(target)
            files.append({"path": str(self.folder / target), "bytes": path.stat().st_size})
        replaced = self._replaced({str(PurePosixPath(target).parent) for target in moves.values()})
        removes = sorted(
            {str(path.relative_to(self.folder)) for path in replaced} - {*moves.values()}
        )
        return {"moves": moves, "removes": removes, "answer": {**answer, "files": files}}

    def _replaced(self, folders: set[str]) -> list[Path]:
        """Files that go; `folders` are those that new files come into."""
        if self.mode == "overwrite":
            return data_files(self.folder)
        own = [path for path in data_files(self.folder) if self._is_own(path)]
        if self.mode != "overwrite_partitions":
            return own
        for name in folders:
            self._check_no_others(self.folder / name)
        return own + [path for name in folders for path in data_files(self.folder / name)]

    def _is_own(self, path: Path) -> bool:
        return path.name.startswith(f"{self.call}-")

    def _check_no_others(self, folder: Path) -> None:
        others = [path for path in visible_files(folder) if not _is_spark_file(path)]
        if others:
            raise _refused(
                f"{folder} holds files that no Spark job wrote ({_named(others, self.folder)}): they would stay beside the new "
                "rows; move them, or give another path"
            )

    def _check_fits(self) -> None:
        """What stays and what comes must be readable as one."""
        files = [path for path in visible_files(self.folder) if format_named(path.name) is not None]
        if others := [path for path in files if format_named(path.name) != self.format]:
            raise _refused(
                f"{self.folder} holds files of another format ({_named(others, self.folder)}), and this step writes {self.format}"
            )
        wanted = [name.lower() for name in self.partition_by]
        for path in files:
            found = [
                unquote(part.partition("=")[0]).lower()
                for part in path.relative_to(self.folder).parts[:-1]
            ]
            if found != wanted:
                raise _refused(
                    f"{self.folder} is partitioned by {', '.join(found) or 'nothing'}, and this step writes "
                    f"partition_by {', '.join(wanted) or 'nothing'}"
                )


def skipped(answer: dict[str, Any]) -> dict[str, Any]:
    """Of a step that found data where it was to write only if there was none."""
    return {**answer, "rows": 0, "files": [], "skipped": True}


def settle(folder: Path) -> None:
    """Finish what was committed here and not done. There is nearly never anything, and then this only looks."""
    if any((folder / HIDDEN_FOLDER).glob(f"*{PENDING}")):
        with _locked(folder):
            _settle_all(folder)


# ---- files -----------------------------------------------------------------------------------------------------------------


def written_files(folder: Path) -> list[Path]:
    """By tasks that were committed: one that lost against a copy of itself may go on for a moment, below `_temporary`."""
    return sorted(
        path
        for path in folder.rglob("part-*")
        if "_temporary" not in path.relative_to(folder).parts
    )


def visible_files(folder: Path) -> list[Path]:
    """Those that readers see. A link to a folder is one: nothing behind it is ever removed."""
    found: list[Path] = []
    for place, folders, files in os.walk(folder):
        links = [name for name in folders if os.path.islink(os.path.join(place, name))]
        folders[:] = [name for name in folders if not _is_hidden(name)]
        found += [Path(place, name) for name in (*files, *links) if not _is_hidden(name)]
    return sorted(found)


def data_files(folder: Path) -> list[Path]:
    """Those that a Spark job has named."""
    return [path for path in visible_files(folder) if _is_spark_file(path)]


def _is_spark_file(path: Path) -> bool:
    return _SPARK_FILE.fullmatch(path.name) is not None and not path.is_symlink()


def _is_hidden(name: str) -> bool:
    """As Spark has it: `_day=1` is a partition."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def _is_table_log(path: Path) -> bool:
    return path.is_dir() and (path.name != "metadata" or any(path.glob("*.metadata.json")))


def _named(paths: list[Path], folder: Path) -> str:
    names = [str(path.relative_to(folder)) for path in paths[:MAX_NAMED]]
    more = len(paths) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")


def _refused(message: str) -> Broken:
    return Broken("output", Wrong(message))


# ---- records ---------------------------------------------------------------------------------------------------------------


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One commit at a time: others of this folder wait."""
    hidden = folder / HIDDEN_FOLDER
    hidden.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(hidden / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _write_record(path: Path, record: dict[str, Any]) -> None:
    part = path.with_suffix(".part")
    part.write_text(json.dumps(record))
    os.replace(part, path)


def _read_done(folder: Path, call: str) -> dict[str, Any] | None:
    try:
        answer: dict[str, Any] = json.loads(
            (folder / HIDDEN_FOLDER / f"{call}{DONE}").read_bytes()
        )["answer"]
    except (FileNotFoundError, NotADirectoryError):
        return None
    return answer


def _settle_all(folder: Path) -> None:
    for path in sorted((folder / HIDDEN_FOLDER).glob(f"*{PENDING}")):
        _finish(folder, path.stem)


def _finish(folder: Path, call: str) -> None:
    """What the record says; each part of it may have been done before."""
    hidden = folder / HIDDEN_FOLDER
    record = json.loads((hidden / f"{call}{PENDING}").read_bytes())
    for staged, target in record["moves"].items():
        _move(folder / staged, folder / target)
    for name in record["removes"]:
        path = folder / name
        path.unlink(missing_ok=True)
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    if "schema" in record:  # records of older versions have none
        _write_record(hidden / SCHEMA, record["schema"])
    _write_record(hidden / f"{call}{DONE}", {"answer": record["answer"]})
    (hidden / f"{call}{PENDING}").unlink()
    for left in hidden.glob(f"{call}-*"):
        shutil.rmtree(left, ignore_errors=True)


def _move(staged: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.replace(staged, target)
    except FileNotFoundError:
        if not target.exists():
            message = (
                f"{staged} was committed to this folder and is gone; write {target.parent} anew"
            )
            raise Broken("output", Wrong(message)) from None


def _forget_old_records(folder: Path) -> None:
    """And what tries left that were killed before their commit."""
    oldest = time.time() - RECORD_KEPT_S
    for path in (folder / HIDDEN_FOLDER).iterdir():
        if path.suffix == PENDING or path.name in ("lock", SCHEMA) or path.stat().st_mtime > oldest:
            continue
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)

"""Paths that a step names: where they are, what their names say of the format, and which are not to be written to."""

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from noetl.model.errors import InvalidInput
from noetl.results.encoding import PARQUET
from noetl.spark.profiles import Profile
from noetl.tools.sinks.files import SUFFIXES

_ENDINGS = {**SUFFIXES, ".orc": "orc", ".avro": "avro", ".txt": "text", ".xml": "xml"}
_LINES = {"jsonl": "json", "ndjson": "json"}  # Spark's JSON is one value in each line
_PACKED = frozenset((".gz", ".bz2", ".zst", ".lz4", ".snappy", ".deflate"))
_READ: dict[str, dict[str, Any]] = {
    "csv": {
        "escape": '"',  # RFC 4180: a quote inside quotes is doubled
        "enforceSchema": False,  # files of one path have one header
        "mode": "FAILFAST",
        "columnPruning": False,  # with it, Spark does not see how many fields a row has
    },
    "json": {"mode": "FAILFAST"},
    "xml": {"mode": "FAILFAST"},
}
_TOLERANT = {
    "mode",
    "columnnameofcorruptrecord",
}  # an input with one of these says what to do with broken records
_STRICT = {"mode", "columnPruning"}
_WRITTEN = {"csv": {"escape": '"', "header": True}}
_SYSTEM_FOLDERS = ("/bin", "/boot", "/dev", "/etc", "/lib", "/proc", "/sbin", "/sys", "/usr")


def located(path: str, where: Profile) -> str:
    """A relative one is below the folder of the worker, as for other tools. Spark takes it from a folder of its own, so elsewhere
    than on this machine nobody could say what it means."""
    if not path:
        raise InvalidInput("a path is empty")
    if urlsplit(path).scheme or path.startswith("/"):
        return path
    if where != Profile():
        raise InvalidInput(
            f"{path!r} is a relative path, and Spark is not of this machine alone",
            hint="say it in full",
        )
    return os.path.abspath(path) + ("/" if path.endswith("/") else "")


def format_of(path: str, said: Any = None) -> str:
    """What is said, else by the ending of the name, as sinks do; Parquet otherwise."""
    found = str(said or format_named(path) or PARQUET)
    return _LINES.get(found, found)


def format_named(path: str) -> str | None:
    """By the ending of its name; None if that says nothing."""
    name = PurePosixPath(path)
    ending = PurePosixPath(name.stem).suffix if name.suffix.lower() in _PACKED else name.suffix
    found = _ENDINGS.get(ending.lower())
    return None if found is None else _LINES.get(found, found)


def local_folder(path: str) -> Path | None:
    """Where it is on a file system of this machine; None for a path elsewhere."""
    parts = urlsplit(path)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return Path(path) if path.startswith("/") else None


def check_output(path: str, own: Iterable[Path]) -> None:
    """Refuse folders that no step may write to. `own`: those of NoETL itself."""
    folder = local_folder(path)
    if folder is None:
        if not urlsplit(path).path.strip("/"):
            raise InvalidInput(f"output: {path!r} is a whole store", hint="write to a folder in it")
        return
    place = Path(os.path.realpath(folder))
    if any(place.is_relative_to(each) for each in _SYSTEM_FOLDERS):
        raise InvalidInput(
            f"output: {place} belongs to the system", hint="write to a folder of its own"
        )
    for each in own:
        if place.is_relative_to(os.path.realpath(each)):
            raise InvalidInput(
                f"output: {place} is where NoETL keeps its own data", hint="write to another folder"
            )
    for each in (*own, Path.home(), Path.cwd(), Path(tempfile.gettempdir())):
        if Path(os.path.realpath(each)).is_relative_to(place):
            raise InvalidInput(
                f"output: {place} holds much besides the rows of a step",
                hint="write to a folder in it",
            )


def reading(format: str, said: dict[str, Any] | None) -> dict[str, Any]:
    """The options of Spark's reader. A broken record fails it, unless the input says otherwise: Spark by itself gives nulls."""
    given = said or {}
    written = {name.lower() for name in given}
    left_out = _STRICT if written & _TOLERANT else set()
    defaults = _READ.get(format, {}).items()
    ours = {
        name: value
        for name, value in defaults
        if name not in left_out and name.lower() not in written
    }
    return {**ours, **given}


def writing(format: str, said: dict[str, Any] | None) -> dict[str, Any]:
    """The options of Spark's writer."""
    return {**_WRITTEN.get(format, {}), **(said or {})}

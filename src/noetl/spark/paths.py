"""Paths that a step names: their place, their format, and whether a step may write to them."""

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from noetl.model.errors import InvalidInput
from noetl.results.formats.encoding import PARQUET
from noetl.spark.profiles import SparkProfile
from noetl.tools.sink.files import FORMATS_BY_SUFFIX

_ENDINGS = {**FORMATS_BY_SUFFIX, ".orc": "orc", ".avro": "avro", ".txt": "text", ".xml": "xml"}
_LINE_FORMATS = {"jsonl": "json", "ndjson": "json"}  # Spark's JSON is one value in each line
_COMPRESSED_ENDINGS = frozenset((".gz", ".bz2", ".zst", ".lz4", ".snappy", ".deflate"))
_READER_DEFAULTS: dict[str, dict[str, Any]] = {
    "csv": {
        "escape": '"',  # RFC 4180: a quote inside quotes is doubled
        "enforceSchema": False,  # files of one path have one header
        "mode": "FAILFAST",
        "columnPruning": False,  # with it, Spark does not see how many fields a row has
    },
    "json": {"mode": "FAILFAST"},
    "xml": {"mode": "FAILFAST"},
}
# With one of these options the input itself decides about broken records.
_TOLERANT_OPTIONS = {"mode", "columnnameofcorruptrecord"}
_STRICT_OPTIONS = {"mode", "columnPruning"}
_WRITER_DEFAULTS = {"csv": {"escape": '"', "header": True}}
_SYSTEM_FOLDERS = ("/bin", "/boot", "/dev", "/etc", "/lib", "/proc", "/sbin", "/sys", "/usr")


def resolve_path(path: str, profile: SparkProfile) -> str:
    """The path in full. A relative path starts at the worker's folder, as with other tools.

    Spark itself would take it from another folder. So a relative path is refused for a Spark that
    does not run on this machine alone.
    """
    if not path:
        raise InvalidInput("a path is empty")
    if urlsplit(path).scheme or path.startswith("/"):
        return path
    if profile != SparkProfile():
        raise InvalidInput(
            f"{path!r} is a relative path, and Spark is not of this machine alone",
            hint="say it in full",
        )
    full = os.path.abspath(path)
    if path.endswith("/"):
        full += "/"
    return full


def choose_format(path: str, declared: Any = None) -> str:
    """The declared format, else the one of the ending of the name, as with sinks, else Parquet."""
    found = str(declared or find_format_by_name(path) or PARQUET)
    return _LINE_FORMATS.get(found, found)


def find_format_by_name(path: str) -> str | None:
    """The format by the ending of the name, or None if the ending is unknown."""
    name = PurePosixPath(path)
    ending = name.suffix
    if ending.lower() in _COMPRESSED_ENDINGS:
        ending = PurePosixPath(name.stem).suffix
    found = _ENDINGS.get(ending.lower())
    if found is None:
        return None
    return _LINE_FORMATS.get(found, found)


def find_local_folder(path: str) -> Path | None:
    """The path on a file system of this machine, or None for a path elsewhere."""
    parts = urlsplit(path)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return Path(path) if path.startswith("/") else None


def check_output_path(path: str, own: Iterable[Path]) -> None:
    """Refuse folders that no step may write to. `own` are the folders of NoETL itself."""
    folder = find_local_folder(path)
    if folder is None:
        if not urlsplit(path).path.strip("/"):
            raise InvalidInput(f"output: {path!r} is a whole store", hint="write to a folder in it")
        return
    target = Path(os.path.realpath(folder))
    if any(target.is_relative_to(system_folder) for system_folder in _SYSTEM_FOLDERS):
        raise InvalidInput(
            f"output: {target} belongs to the system", hint="write to a folder of its own"
        )
    for own_folder in own:
        if target.is_relative_to(os.path.realpath(own_folder)):
            raise InvalidInput(
                f"output: {target} is where NoETL keeps its own data",
                hint="write to another folder",
            )
    for shared_folder in (*own, Path.home(), Path.cwd(), Path(tempfile.gettempdir())):
        if Path(os.path.realpath(shared_folder)).is_relative_to(target):
            raise InvalidInput(
                f"output: {target} holds much besides the rows of a step",
                hint="write to a folder in it",
            )


def make_reader_options(format: str, given: dict[str, Any] | None) -> dict[str, Any]:
    """The options of Spark's reader.

    A broken record fails the step, unless the input says otherwise. Spark's default reads nulls.
    """
    given = given or {}
    given_names = {name.lower() for name in given}
    left_out = _STRICT_OPTIONS if given_names & _TOLERANT_OPTIONS else set()
    options = {}
    for name, value in _READER_DEFAULTS.get(format, {}).items():
        if name not in left_out and name.lower() not in given_names:
            options[name] = value
    return {**options, **given}


def make_writer_options(format: str, given: dict[str, Any] | None) -> dict[str, Any]:
    """The options of Spark's writer."""
    return {**_WRITER_DEFAULTS.get(format, {}), **(given or {})}

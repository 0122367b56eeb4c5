"""Paths that a step names: where they are, and what their names say of the format."""

import os
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from noetl.model.errors import InvalidInput
from noetl.results.encoding import PARQUET
from noetl.spark.profiles import Profile
from noetl.tools.sinks.files import SUFFIXES

_ENDINGS = {**SUFFIXES, ".orc": "orc"}
_LINES = {"jsonl": "json", "ndjson": "json"}  # Spark's JSON is one value in each line
_PACKED = frozenset((".gz", ".bz2", ".zst", ".lz4", ".snappy", ".deflate"))
_READ = {"csv": {"escape": '"'}}  # RFC 4180: a quote inside quotes is doubled
_WRITTEN = {"csv": {"escape": '"', "header": True}}


def located(path: str, where: Profile) -> str:
    """A relative one is below the folder of the worker, as for other tools. Spark takes it from a folder of its own, so elsewhere
    than on this machine nobody could say what it means."""
    if not path:
        raise InvalidInput("a path is empty")
    if urlsplit(path).scheme or path.startswith("/"):
        return path
    if where != Profile():
        raise InvalidInput(
            f"{path!r} is a relative path, and Spark is not of this machine alone", hint="say it in full"
        )
    return os.path.abspath(path) + ("/" if path.endswith("/") else "")


def format_of(path: str, said: Any = None) -> str:
    """What is said, else by the ending of the name, as sinks do; Parquet otherwise."""
    name = PurePosixPath(path)
    ending = PurePosixPath(name.stem).suffix if name.suffix.lower() in _PACKED else name.suffix
    found = str(said or _ENDINGS.get(ending.lower(), PARQUET))
    return _LINES.get(found, found)


def reading(format: str, said: dict[str, Any] | None) -> dict[str, Any]:
    """The options of Spark's reader."""
    return {**_READ.get(format, {}), **(said or {})}


def writing(format: str, said: dict[str, Any] | None) -> dict[str, Any]:
    """The options of Spark's writer."""
    return {**_WRITTEN.get(format, {}), **(said or {})}

"""Frames to files. What a step gives to others goes to a folder of its own attempt, with a manifest at the end: only complete
ones are ever looked at. What goes to a path of the user's appears there under names that a second try writes again.
"""

import json
import os
import re
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow.parquet as pq  # type: ignore[import-untyped]  # it has no types
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

from noetl.spark.failures import Broken, Unmet, Wrong

MANIFEST = "manifest.json"
COMPRESSION = {"compression": "zstd", "parquet.compression.codec.zstd.level": "1"}  # as quick as any, and small
HIDDEN = "__noetl_"  # columns that only name directories: the files keep their own
_OURS = re.compile(r"([0-9a-f]{16}-\d{5}|part-\d{5}-).*|_SUCCESS")
_PIECE = 1 << 20


def write(frame: DataFrame, folder: str, request: dict[str, Any]) -> dict[str, Any]:
    """Parquet, one set of files for every value of `partition_by`."""
    columns = frame.columns
    checked, counted = _checked(frame, request["expect"])
    names = request["output"].get("partition_by", [])
    for name in names:
        checked = checked.withColumn(f"{HIDDEN}{name}", F.col(name))
    writer = checked.write.options(**COMPRESSION)
    writer = writer.partitionBy(*(f"{HIDDEN}{name}" for name in names)) if names else writer
    writer.parquet(folder)
    files = _files(Path(folder))
    partitions = len({os.path.dirname(file["path"]) for file in files})
    made = {"columns": columns, "expect": counted(), "files": files, "partitions": partitions}
    keep_manifest(folder, made)
    return made


def keep_manifest(folder: str, made: dict[str, Any]) -> None:
    """Whole or not at all: whoever takes over finds what was finished."""
    part = Path(folder, f".{MANIFEST}")
    part.write_text(json.dumps(made))
    part.rename(Path(folder, MANIFEST))


def _files(folder: Path) -> list[dict[str, Any]]:
    """In the order of the rows; empty ones are left out, but for one that knows the columns."""
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as threads:
        found = list(threads.map(_file, _written(folder)))
    return [file for file in found if file["rows"]] or found[:1]


def _written(folder: Path) -> list[Path]:
    """By tasks that were committed: one that lost against a copy of itself may go on for a moment, below `_temporary`."""
    return sorted(path for path in folder.rglob("part-*") if "_temporary" not in path.relative_to(folder).parts)


def _file(path: Path) -> dict[str, Any]:
    found = sha256()
    with path.open("rb") as file:
        while data := file.read(_PIECE):
            found.update(data)
    rows = pq.read_metadata(path).num_rows
    return {"path": str(path), "rows": rows, "bytes": path.stat().st_size, "sha256": found.hexdigest()}


# ---- what is expected ----------------------------------------------------------------------------------------------------


def _checked(frame: DataFrame, expect: list[dict[str, Any]]) -> tuple[DataFrame, Callable[[], dict[str, int]]]:
    """The frame without the rows to drop, and, once it was written, how many rows failed each check. A row fails when the check
    is not true of it: one pass over the data counts and writes."""
    if not expect:
        return frame, dict
    given: dict[str, Any] = {}
    fails = {check["name"]: ~F.coalesce(F.expr(_with_columns(check, given)), F.lit(False)) for check in expect}
    for name, value in given.items():
        frame = frame.withColumn(name, F.lit(value))
    seen = Observation("expect")
    counts = [F.count_if(failing).alias(name) for name, failing in fails.items()]
    checked = frame.observe(seen, *counts)
    for check in expect:
        if check["on_fail"] == "drop":
            checked = checked.filter(~fails[check["name"]])
    checked = checked.drop(*given)

    def counted() -> dict[str, int]:
        found = {name: int(count) for name, count in seen.get.items()}
        for check in expect:
            if check["on_fail"] == "fail" and found[check["name"]]:
                raise Broken(
                    f"expect {check['name']}", Unmet(f"{found[check['name']]} rows do not meet {check['sql']!r}")
                )
        return found

    try:
        _ = checked.schema
    except Exception as error:
        raise Broken("expect", error) from error
    return checked, counted


def _with_columns(check: dict[str, Any], given: dict[str, Any]) -> str:
    """The check with a column in place of every parameter, which an expression cannot have; their values are added to `given`."""
    text: str = check["sql"]
    for name, value in reversed(check["values"].items()):  # :noetl_12 before :noetl_1
        column = f"{HIDDEN}{len(given)}"
        given[column] = value
        text = text.replace(f":{name} ", f"`{column}` ")
    return text


# ---- paths of the user's -------------------------------------------------------------------------------------------------


def publish(frame: DataFrame, request: dict[str, Any]) -> dict[str, Any]:
    """To a path that is not ours. On a file system of this machine its files are named by the call, so that a second try replaces
    those of the first; elsewhere Spark's own writer does what it does."""
    output = request["output"]
    path, mode = output["path"], output.get("mode") or "overwrite"
    if mode not in ("overwrite", "append", "error"):
        raise Broken("output", Wrong(f"mode {mode!r} is not one of overwrite, append, error"))
    columns, names = frame.columns, output.get("partition_by", [])
    checked, counted = _checked(frame, request["expect"])
    written = Observation("written")
    writer = (
        checked.observe(written, F.count(F.lit(1)).alias("rows"))
        .write.format(output["format"])
        .options(**output["options"])
    )
    writer = writer.partitionBy(*names) if names else writer
    made: dict[str, Any] = {"columns": columns, "files": [], "path": path}
    local = _local(path)
    if local is None:
        writer.mode("errorifexists" if mode == "error" else mode).save(path)
        return {**made, "expect": counted(), "rows": _rows(written)}
    staging = local / f".noetl-{request['session']}"
    if mode == "error" and _strangers(local, request["key"]):
        raise Broken("output", Wrong(f"{path} holds data already"))
    try:
        writer.save(str(staging))
        made["expect"], made["rows"] = counted(), _rows(written)
        made["files"] = _moved(staging, local, request["key"], replace=mode == "overwrite")
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return made


def _rows(written: Observation) -> int:
    return int(written.get["rows"])


def _local(path: str) -> Path | None:
    parts = urlsplit(path)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return Path(path) if path.startswith("/") else None


def _data(folder: Path) -> list[Path]:
    """Files that a Spark job has put there; nothing else is ever removed."""
    found = folder.rglob("*") if folder.is_dir() else ()
    return [
        path
        for path in found
        if path.is_file()
        and _OURS.fullmatch(path.name)
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    ]


def _strangers(folder: Path, key: str) -> list[Path]:
    return [path for path in _data(folder) if not path.name.startswith(f"{key[:16]}-")]


def _moved(staging: Path, folder: Path, key: str, *, replace: bool) -> list[dict[str, Any]]:
    before = _data(folder) if replace else [path for path in _data(folder) if path.name.startswith(f"{key[:16]}-")]
    made: list[dict[str, Any]] = []
    for number, path in enumerate(_written(staging)):
        suffix = path.name.partition(".")[2]
        target = folder / path.relative_to(staging).parent / f"{key[:16]}-{number:05}.{suffix}"
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(path, target)
        made.append({"path": str(target), "bytes": target.stat().st_size})
    for path in {*before} - {Path(file["path"]) for file in made}:
        path.unlink(missing_ok=True)
    return made

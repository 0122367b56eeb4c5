"""Which lake this process uses, as its settings say: a directory, or a place in an object store."""

import os
from pathlib import Path

from noetl.settings import Storage
from noetl.spark.jobs.lake import OWNER, LakeStore
from noetl.spark.jobs.lake_directory import DirectoryLake
from noetl.worker.stores import connect_object_store, directory_of

FOLDER = "lake"


def open_lake(home: Path, storage: Storage, place: str | None = None) -> LakeStore:
    """`place`: a directory or a URL, instead of the one that the settings name."""
    chosen = place or find_lake(home, storage)
    if chosen.startswith("file://"):
        return DirectoryLake(directory_of(chosen))
    if "://" not in chosen:
        return DirectoryLake(Path(chosen).expanduser())
    from noetl.spark.jobs.lake_objects import (
        ObjectLake,  # a process without a cloud does not load its library
    )

    return ObjectLake(lambda: connect_object_store(chosen, storage), chosen)


def find_lake(home: Path, storage: Storage) -> str:
    """The directory or URL of the lake. One below the home of large results, unless the settings name another. Earlier versions
    kept the lake of an object store below the home of NoETL: one that is there stays in use until it is moved."""
    if storage.storage_lake is not None:
        return storage.storage_lake
    tier = storage.storage_cloud_tier
    if tier is None:
        return os.fspath(home / "results" / FOLDER)
    earlier = home / FOLDER
    if not tier.startswith("file://") and (earlier / OWNER).exists():
        return os.fspath(earlier)
    return f"{tier.rstrip('/')}/{FOLDER}"

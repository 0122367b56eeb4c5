"""Opens the lake that the settings name: a directory, or a place in an object store."""

import os
from pathlib import Path

from noetl.runtime.stores import connect_object_store, directory_from_url
from noetl.settings import StorageSettings
from noetl.spark.jobs.lake import OWNER_FILE, LakeStore
from noetl.spark.jobs.lake_directory import DirectoryLake

LAKE_FOLDER = "lake"


def open_lake(home: Path, storage: StorageSettings, place: str | None = None) -> LakeStore:
    """The lake of the settings, or of `place`: a directory or a URL."""
    address = place or find_lake(home, storage)
    if address.startswith("file://"):
        return DirectoryLake(directory_from_url(address))
    if "://" not in address:
        return DirectoryLake(Path(address).expanduser())
    # Processes without an object store do not load its library.
    from noetl.spark.jobs.lake_objects import ObjectLake

    return ObjectLake(lambda: connect_object_store(address, storage), address)


def find_lake(home: Path, storage: StorageSettings) -> str:
    """The directory or URL of the lake: the one of the settings, else below the large results.

    Earlier versions kept the lake below the home even if results were in an object store. Such a
    lake stays in use until it is moved.
    """
    if storage.storage_lake is not None:
        return storage.storage_lake
    tier = storage.storage_cloud_tier
    if tier is None:
        return os.fspath(home / "results" / LAKE_FOLDER)
    earlier = home / LAKE_FOLDER
    if not tier.startswith("file://") and (earlier / OWNER_FILE).exists():
        return os.fspath(earlier)
    return f"{tier.rstrip('/')}/{LAKE_FOLDER}"

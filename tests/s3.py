"""An S3 server for tests: one per test process, started at first use; each test gets a place of its own in it.

with server().place() as settings: ...      # NOETL_STORAGE_* of a process that keeps its large results there
server().stop(); server().start()            # the same data again
"""

import socket
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

from obstore.exceptions import BaseError

from noetl.results.tiers.objects import open_object_store
from tests.servers import ServerProcess

BUCKET = "test-results"
KEY, SECRET, REGION = "test-key", "test-secret", "us-east-1"
PREFIX = "noetl-test-s3-"
PORTS = ("master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc",
         "s3.port", "s3.port.grpc", "admin.port", "admin.port.grpc")  # fmt: skip
NOT_NEEDED = (
    "-webdav=false",
    "-admin.ui=false",
    "-s3.port.iceberg=0",
    "-s3.port.lance=0",
    "-master.telemetry=false",
)
_numbers = count(1)


class S3(ServerProcess):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._ports = dict(zip(PORTS, _free(len(PORTS)), strict=True))
        self.endpoint = f"http://127.0.0.1:{self._ports['s3.port']}"

    def command(self) -> list[str]:
        ports = [f"-{name}={port}" for name, port in self._ports.items()]
        sockets = [
            f"-s3.localSocket={self.folder}/s3.sock",
            f"-filer.localSocket={self.folder}/filer.sock",
        ]
        here = [f"-dir={self.folder}/data", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"]
        return ["weed", f"-logdir={self.folder}", "mini", *here, *ports, *sockets, *NOT_NEEDED]

    def environment(self) -> dict[str, str]:
        return {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}

    def place(self) -> str:
        """The URL of a place that nobody else uses. One bucket is enough for all: each more takes volumes of its own."""
        return f"s3://{BUCKET}/{next(_numbers)}/results"

    def settings(self, bucket: str) -> dict[str, str]:
        """The environment of a process that keeps its large results there: keys as any client of S3 finds them."""
        return {
            "NOETL_STORAGE_CLOUD_TIER": bucket,
            "NOETL_STORAGE_ENDPOINT": self.endpoint,
            "NOETL_STORAGE_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": REGION,
        }

    def connect_bucket(self, bucket: str) -> Any:
        more = {
            "endpoint": self.endpoint,
            "access_key_id": KEY,
            "secret_access_key": SECRET,
            "region": REGION,
        }
        return open_object_store(bucket, allow_http=True, **more)

    def answers(self) -> bool:
        """It listens before it can store."""
        try:
            self.connect_bucket(f"s3://{BUCKET}").put("ready", b"1")
        except BaseError:
            return False
        return True


def _free(count: int) -> list[int]:
    taken = [socket.socket() for _ in range(count)]
    try:
        for each in taken:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in taken]
    finally:
        for each in taken:
            each.close()


@cache
def server() -> S3:
    return S3.start_new(PREFIX)

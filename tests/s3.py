"""An S3 server for tests: one per test process, started at first use; whoever asks gets a place of its own in it.

with server().place() as settings: ...      # NOETL_STORAGE_* of a process that keeps its large results there
server().stop(); server().start()            # the same data again
"""

import atexit
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

from obstore.exceptions import BaseError

from noetl.results.objects import connect
from tests.waiting import until

BUCKET = "test-results"
KEY, SECRET, REGION = "test-key", "test-secret", "us-east-1"
PREFIX = "noetl-test-s3-"
PORTS = ("master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc",
         "s3.port", "s3.port.grpc", "admin.port", "admin.port.grpc")  # fmt: skip
NOT_NEEDED = ("-webdav=false", "-admin.ui=false", "-s3.port.iceberg=0", "-s3.port.lance=0", "-master.telemetry=false")
ENDS_WITH_US = '"$@" & read -r _; kill -9 $!'  # also when we are killed: then nobody holds the pipe any more
_numbers = count(1)


class S3:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ports = dict(zip(PORTS, _free(len(PORTS)), strict=True))
        self._process: subprocess.Popen[bytes] | None = None
        self.endpoint = f"http://127.0.0.1:{self._ports['s3.port']}"

    def start(self) -> None:
        """Ready when it returns."""
        if self._process is not None:
            return
        ports = [f"-{name}={port}" for name, port in self._ports.items()]
        sockets = [f"-s3.localSocket={self._folder}/s3.sock", f"-filer.localSocket={self._folder}/filer.sock"]
        self._process = subprocess.Popen(
            ["sh", "-c", ENDS_WITH_US, "sh", Path(sys.executable).parent / "weed", f"-logdir={self._folder}",
             "mini", f"-dir={self._folder}/data", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", *ports, *sockets, *NOT_NEEDED],
            env={"PATH": os.defpath, "HOME": str(self._folder), "GOMAXPROCS": "2",
                 "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET},
            stdin=subprocess.PIPE, stdout=(self._folder / "out").open("ab"), stderr=subprocess.STDOUT,
            cwd=self._folder, start_new_session=True,
        )  # fmt: skip
        until(self._writable)

    def stop(self) -> None:
        """At once: whoever is in the middle of a request learns of it."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """It takes requests and answers none, until the block ends."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.killpg(self._process.pid, signal.SIGCONT)

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

    def connected(self, bucket: str) -> Any:
        more = {"endpoint": self.endpoint, "access_key_id": KEY, "secret_access_key": SECRET, "region": REGION}
        return connect(bucket, allow_http=True, **more)

    def _writable(self) -> bool:
        """It answers before it can store."""
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "out").read_text()[-2000:]
        try:
            self.connected(f"s3://{BUCKET}").put("ready", b"1")
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
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    made = S3(folder)

    def end() -> None:
        made.stop()
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(end)
    made.start()
    return made

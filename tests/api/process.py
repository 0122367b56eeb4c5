"""The API in a process of its own, on a free port."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.processes import environment, free_port
from tests.waiting import until

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Api:
    url: str

    def get(self, path: str) -> Any:
        return httpx.get(f"{self.url}{path}", trust_env=False).raise_for_status().json()

    def calls(self) -> dict[str, int]:
        """How often each path was asked for."""
        counted: dict[str, int] = self.get("/api/v1/calls")
        return counted

    def forget(self) -> None:
        httpx.delete(f"{self.url}/api/v1/calls", trust_env=False).raise_for_status()

    def healthy(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health", trust_env=False).is_success
        except httpx.TransportError:
            return False


@contextmanager
def run_api(rate_limit: int = 0) -> Iterator[Api]:
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "tests.api",
        "--port",
        str(port),
        "--rate-limit",
        str(rate_limit),
    ]
    process = subprocess.Popen(command, cwd=ROOT, env=environment())
    try:
        api = Api(f"http://127.0.0.1:{port}")
        until(lambda: api.healthy() or process.poll() is not None)
        assert process.poll() is None, "the API did not start"
        yield api
    finally:
        process.terminate()
        process.wait()

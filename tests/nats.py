"""A NATS server with JetStream for tests: one per test process, started at first use.

server().url                       # NOETL_NATS_URL
server().stop(); server().start()  # at the same address, with nothing in it
"""

import socket
from functools import cache
from itertools import count
from pathlib import Path

from tests.processes import free_port
from tests.servers import ServerProcess

LIMIT = 4 << 20  # bytes of a bucket
PREFIX = "noetl-test-nats-"
_numbers = count(1)


class Nats(ServerProcess):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._port = free_port()
        self.url = f"nats://127.0.0.1:{self._port}"

    def command(self) -> list[str]:
        here = ["--addr", "127.0.0.1", "--port", str(self._port), "--store_dir", str(self.folder)]
        return ["nats-server", "--jetstream", *here]

    def bucket(self) -> str:
        """A name that nobody else uses."""
        return f"test_{next(_numbers)}"

    def answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self._port), timeout=1) as probe:
                return probe.recv(4) == b"INFO"
        except OSError:
            return False


@cache
def server() -> Nats:
    return Nats.start_new(PREFIX)

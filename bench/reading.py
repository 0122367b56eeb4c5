"""Reads one address again and again until its standard input ends; then prints how many seconds each time took, as JSON.

A process of its own: who also makes the load would measure itself.

    python bench/reading.py http://127.0.0.1:8082 /api/executions/1 0.004
"""

import json
import select
import sys
import time
from http.client import HTTPConnection
from urllib.parse import urlsplit


def read(url: str, path: str, every: float) -> list[float]:
    parts = urlsplit(url)
    assert parts.hostname is not None
    server = HTTPConnection(parts.hostname, parts.port)
    taken: list[float] = []
    while not select.select([sys.stdin], [], [], every)[0]:
        begun = time.perf_counter()
        server.request("GET", path)
        answer = server.getresponse()
        body = answer.read()
        taken.append(time.perf_counter() - begun)
        assert (answer.status, json.loads(body)["status"]) == (200, "completed"), body
    return taken


if __name__ == "__main__":
    _, address, path, every = sys.argv
    print(json.dumps(read(address, path, float(every))))

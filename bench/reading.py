"""Reads addresses in turn until its standard input ends; then prints how many seconds each time took, as JSON.

A process of its own: who also makes the load would measure itself. It says a word when it is connected and begins.

    NOETL_TOKEN=… python bench/reading.py http://127.0.0.1:8082 0.004 /api/executions/1 /api/executions/2
"""

import json
import os
import select
import sys
import time
from http.client import HTTPConnection
from urllib.parse import urlsplit


def read_pages(url: str, every: float, paths: list[str]) -> list[float]:
    parts = urlsplit(url)
    assert parts.hostname is not None
    server = HTTPConnection(parts.hostname, parts.port)
    server.connect()
    print("begins", flush=True)
    headers = {"Authorization": f"Bearer {os.environ['NOETL_TOKEN']}"}
    taken: list[float] = []
    while not select.select([sys.stdin], [], [], every)[0]:
        path = paths[len(taken) % len(paths)]
        begun = time.perf_counter()
        server.request("GET", path, headers=headers)
        answer = server.getresponse()
        body = answer.read()
        taken.append(time.perf_counter() - begun)
        assert (answer.status, json.loads(body)["execution_id"]) == (
            200,
            path.rpartition("/")[2],
        ), body
    return taken


if __name__ == "__main__":
    _, address, every, *paths = sys.argv
    print(json.dumps(read_pages(address, float(every), paths)))

"""A job API as quantum computers have it, simulated: submit a circuit, ask how it goes, fetch the counts.

    python examples/quantum/jobs.py --port 5600

POST /jobs        {circuit, backend, shots, seed}, with `Idempotency-Key`: the same key again is the same job
GET  /jobs/{id}   {status: queued | running | done, counts}
GET  /jobs        every job, and how often each was submitted

Circuits are one rotation `ry(theta)` and a measurement. A job is done after a few looks; every fifth submission is answered 503
after the job was taken, as networks do: whoever submits again without a key has two jobs.
"""

import argparse
import hashlib
import json
import math
import random
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from typing import Any

LOOKS = 3  # until a job is done


class Jobs:
    def __init__(self) -> None:
        self._jobs: dict[str, dict[str, Any]] = {}
        self._lock = Lock()
        self._submitted = 0

    def submit(self, key: str, asked: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        with self._lock:
            self._submitted += 1
            id = hashlib.sha256(key.encode()).hexdigest()[:12]
            job = self._jobs.setdefault(id, {**asked, "id": id, "looks": 0, "submitted": 0})
            job["submitted"] += 1
            if self._submitted % 5 == 0:
                return 503, {"error": "the gateway lost the answer"}
            return 201, {"id": id, "status": "queued"}

    def look(self, id: str) -> tuple[int, dict[str, Any]]:
        with self._lock:
            job = self._jobs.get(id)
            if job is None:
                return 404, {"error": f"there is no job {id}"}
            job["looks"] += 1
            if job["looks"] < LOOKS:
                return 200, {"id": id, "status": "queued" if job["looks"] == 1 else "running"}
            return 200, {"id": id, "status": "done", "counts": counts(job)}

    def all(self) -> list[dict[str, Any]]:
        with self._lock:
            return [{"id": id, "submitted": job["submitted"]} for id, job in self._jobs.items()]


def counts(job: dict[str, Any]) -> dict[str, int]:
    """Of a qubit that was turned by theta: one is measured with sin²(theta / 2)."""
    draw = random.Random(f"{job['circuit']}:{job['seed']}")
    chance = math.sin(job["circuit"]["theta"] / 2) ** 2
    ones = sum(draw.random() < chance for _ in range(job["shots"]))
    return {"0": job["shots"] - ones, "1": ones}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    jobs = Jobs()

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        key = self.headers.get("Idempotency-Key") or str(random.random())
        self._answer(*self.jobs.submit(key, asked))

    def do_GET(self) -> None:
        if self.path == "/jobs":
            self._answer(200, {"jobs": self.jobs.all()})
        else:
            self._answer(*self.jobs.look(self.path.rpartition("/")[2]))

    def _answer(self, status: int, said: dict[str, Any]) -> None:
        body = json.dumps(said).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *said: Any) -> None:
        """Nothing."""


if __name__ == "__main__":
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--port", type=int, default=5600)
    server = ThreadingHTTPServer(("127.0.0.1", options.parse_args().port), Handler)
    print(f"job API at http://127.0.0.1:{server.server_address[1]}", flush=True)
    server.serve_forever()

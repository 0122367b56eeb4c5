"""The two ways the core runs: server and worker in one process as `noetl run` wires them, and as two processes that speak HTTP.

The database of both belongs to the benchmark, so that it outlives what is killed. The system in one process is this file
as a program: it does what each line of JSON on its standard input says, until the input ends.
"""

import argparse
import asyncio
import cProfile
import json
import os
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import msgspec

from gauges import list_descendants
from noetl.client.local import open_local_client
from noetl.client.rows import Row
from noetl.model.ids import ExecutionId
from noetl.model.reference import Reference
from noetl.pipeline.scope.results import ResultReader
from noetl.runtime.event_loop import run_in_loop
from noetl.runtime.stores import open_store
from noetl.runtime.token_files import read_token_file
from noetl.settings import StorageSettings, read_settings
from noetl.worker.http import HttpChannel
from noetl.worker.wire import NotConnected, ServerConnections

HANG_LIMIT_S = 120.0
LINE = 64 << 20  # bytes


class System(Protocol):
    """A server and a worker on which executions run."""

    mode: str

    def list_processes(self) -> dict[str, list[int]]:
        """Their process ids, by role."""
        ...

    async def register(self, text: str) -> None: ...
    async def start(self, path: str, payloads: list[Row]) -> list[ExecutionId]:
        """One execution for each, all at once."""
        ...

    async def resolve(self, references: list[Row]) -> list[Any]: ...
    async def list_executions(self, before: str | None, limit: int) -> list[Row]: ...
    async def lose_worker(self) -> None:
        """Kill it and start another one."""
        ...


async def start_process(home: Path, *command: str, **environment: str) -> Process:
    known = {name: value for name, value in os.environ.items() if not name.startswith("NOETL_")}
    told = {"NOETL_HOME": str(home), "NOETL_LOG_LEVEL": "error", "NOETL_UI": "skip", **environment}
    return await asyncio.create_subprocess_exec(
        sys.executable, *command, env={**known, **told}, stdin=PIPE, stdout=PIPE, limit=LINE
    )


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


async def stop_process(process: Process) -> None:
    if process.returncode is None:
        process.send_signal(signal.SIGTERM)
    await process.communicate()


# ---- one process -------------------------------------------------------------------------------------------------------


class EmbeddedSystem:
    mode = "embedded"

    def __init__(self, home: Path, profile: Path | None) -> None:
        self._home = home
        self._profile = profile
        self._process: Process | None = None

    async def open(self) -> None:
        more = [] if self._profile is None else ["--profile", str(self._profile)]
        self._process = await start_process(self._home, __file__, str(self._home), *more)
        await self._ask("ready")

    async def close(self) -> None:
        """At the end of its input it ends in order."""
        assert self._process is not None
        await self._process.communicate(b"")

    def list_processes(self) -> dict[str, list[int]]:
        assert self._process is not None
        return {"process": [self._process.pid], "children": list_descendants(self._process.pid)}

    async def register(self, text: str) -> None:
        await self._ask("register", text)

    async def start(self, path: str, payloads: list[Row]) -> list[ExecutionId]:
        ids: list[ExecutionId] = await self._ask("start", path, payloads)
        return ids

    async def resolve(self, references: list[Row]) -> list[Any]:
        values: list[Any] = await self._ask("resolve", references)
        return values

    async def list_executions(self, before: str | None, limit: int) -> list[Row]:
        rows: list[Row] = await self._ask("list_executions", before, limit)
        return rows

    async def lose_worker(self) -> None:
        """The server is in the same process, and goes with it."""
        assert self._process is not None
        self._process.kill()
        await self._process.communicate()
        await self.open()

    async def _ask(self, *what: Any) -> Any:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(what).encode() + b"\n")
        return json.loads(await process.stdout.readline())


async def serve_requests(home: Path) -> None:
    """Answer the requests on standard input."""
    stdin = asyncio.StreamReader(limit=LINE)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin
    )
    async with open_local_client(home, "run") as client:
        while line := await stdin.readline():
            match json.loads(line):
                case ["register", text]:
                    answer: Any = await client.register(text)
                case ["start", path, payloads]:
                    answer = await asyncio.gather(
                        *(client.start(path, None, each) for each in payloads)
                    )
                case ["resolve", references]:
                    known = msgspec.convert(references, list[Reference])
                    answer = [await client.resolve(each) for each in known]
                case ["list_executions", before, limit]:
                    answer = await client.list_executions(before=before, limit=limit)
                case _:
                    answer = "here"
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()


# ---- processes over HTTP -----------------------------------------------------------------------------------------------


class HttpSystem:
    """Asked with the client that workers have: a general one would take a good part of the processors that are measured."""

    mode = "http"

    def __init__(self, home: Path) -> None:
        self._home = home
        self.url = free_address()
        self._wire = ServerConnections(self.url)
        self._channel = HttpChannel([self.url], self._find_token)
        self._payloads = ResultReader(
            open_store(self._channel, home, read_settings(StorageSettings)),
            self._channel.list_manifest_parts,
        )
        self._server: Process | None = None
        self._worker: Process | None = None

    async def open(self) -> None:
        self._worker = await self._start_worker()
        await self._start_server()

    async def _start_server(self) -> None:
        port = self.url.rpartition(":")[2]
        command = self.make_command("server")
        self._server = await start_process(self._home, *command, "start", "--port", port)
        async with asyncio.timeout(HANG_LIMIT_S):
            while not await self._is_ready():
                await asyncio.sleep(0.01)

    async def close(self) -> None:
        assert self._server is not None
        assert self._worker is not None
        self._wire.close()
        await self._channel.close()
        await stop_process(self._worker)
        await stop_process(self._server)

    async def _start_worker(self) -> Process:
        command = self.make_command("worker")
        return await start_process(
            self._home,
            *command,
            "start",
            NOETL_SERVER_URL=self.url,
            NOETL_HTTP_ALLOW="127.0.0.1",  # where benchmarks run the APIs that steps call
        )

    def make_command(self, role: str) -> tuple[str, ...]:
        """The program and its arguments up to the name of the role."""
        return ("-m", "noetl", role)

    @cached_property
    def token(self) -> str:
        """The token of the user of its home, which the server has made."""
        token = read_token_file(self._home, "admin")
        assert token is not None
        return token

    def _find_token(self, url: str) -> str:
        return self.token

    async def _is_ready(self) -> bool:
        with suppress(NotConnected):
            return (
                await self._wire.send_request("GET", "/ready", patience=HANG_LIMIT_S)
            ).status == 200
        return False

    def list_processes(self) -> dict[str, list[int]]:
        assert self._server is not None
        assert self._worker is not None
        return {
            "server": [self._server.pid],
            "worker": [self._worker.pid],
            "children": list_descendants(self._worker.pid),
        }

    async def register(self, text: str) -> None:
        await self._post("/api/catalog/register", {"content": text})

    async def start(self, path: str, payloads: list[Row]) -> list[ExecutionId]:
        bodies = [{"path": path, "payload": payload} for payload in payloads]
        answers = await asyncio.gather(*(self._post("/api/execute", body) for body in bodies))
        return [ExecutionId(answer["execution_id"]) for answer in answers]

    async def cancel(self, execution: ExecutionId) -> None:
        await self._post(f"/api/executions/{execution}/cancel", {})

    async def resolve(self, references: list[Row]) -> list[Any]:
        return [
            await self._payloads.resolve(each)
            for each in msgspec.convert(references, list[Reference])
        ]

    async def list_executions(self, before: str | None, limit: int) -> list[Row]:
        older = "" if before is None else f"&before={before}"
        rows: list[Row] = (await self.get(f"/api/executions?limit={limit}{older}"))["executions"]
        return rows

    async def lose_worker(self) -> None:
        assert self._worker is not None
        self._worker.kill()
        await self._worker.communicate()
        self._worker = await self._start_worker()

    async def lose_server(self) -> None:
        assert self._server is not None
        self._server.kill()
        await self._server.communicate()
        await self._start_server()

    async def get(self, path: str) -> Any:
        answer = await self._wire.send_request("GET", path, patience=HANG_LIMIT_S, token=self.token)
        assert answer.status == 200, answer
        return msgspec.json.decode(answer.body)

    async def _post(self, path: str, body: Row) -> Any:
        answer = await self._wire.send_request(
            "POST", path, msgspec.json.encode(body), HANG_LIMIT_S, token=self.token
        )
        assert answer.status in (200, 201, 202), answer
        return msgspec.json.decode(answer.body)


@asynccontextmanager
async def open_system(
    mode: str,
    home: Path,
    profile: Path | None = None,
    system: EmbeddedSystem | HttpSystem | None = None,
) -> AsyncIterator[EmbeddedSystem | HttpSystem]:
    if system is None:
        system = EmbeddedSystem(home, profile) if mode == "embedded" else HttpSystem(home)
    try:
        await system.open()
        yield system
    finally:
        await system.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("home", type=Path)
    parser.add_argument("--profile", type=Path)
    options = parser.parse_args()
    if options.profile is None:
        run_in_loop(serve_requests(options.home))
        return
    with cProfile.Profile() as profiler:
        run_in_loop(serve_requests(options.home))
    profiler.dump_stats(options.profile)


if __name__ == "__main__":
    main()

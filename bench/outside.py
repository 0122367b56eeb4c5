"""The systems that `blackbox.py` compares, as their users have them: processes that are started, asked and killed.

Ours are asked over HTTP alone: playbooks are registered, executions are started, followed to their end, and the result of
the last step is downloaded. The database is one of the benchmark's own Postgres, named by NOETL_DB_URL.
"""

import asyncio
import json
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from gauges import list_descendants
from noetl.runtime.token_files import read_token_file
from noetl.worker.wire import MAX_IDLE_S, HttpConnection, ResponseLost, WireResponse
from scenarios import make_chain, make_loop, make_playbook
from systems import HANG_LIMIT_S, LINE, free_address, start_process, stop_process

RETRY_S = 0.005  # seconds between two tries to reach a server that starts
MAKE_ROWS = """
result = [
    {"id": i, "kind": i % 97, "amount": i * 0.25, "name": f"name {i}", "active": i % 3 == 0,
     "at": f"2026-01-{i % 28 + 1:02d}T{i % 24:02d}:{i % 60:02d}:00Z"}
    for i in range(n)
]
"""
ADD_ROWS = 'result = {"sum": sum(row["kind"] for row in rows), "rows": len(rows)}'
MARK_ITEM = 'with open(file, "a") as out:\n    out.write(f"{i}\\n")\nresult = {"i": i}'

Row = dict[str, Any]


class Contender(Protocol):
    """A system under measurement. Every method that runs something returns when the caller has the result."""

    name: str

    async def open(self) -> Row:
        """Start its processes on an empty database, and run a step: returns its result."""
        ...

    async def prepare(self, lengths: list[int]) -> None:
        """Register what will be run; chains have these lengths."""
        ...

    async def close(self) -> None: ...
    def list_processes(self) -> dict[str, list[int]]:
        """Process ids by role."""
        ...

    async def run_chains(self, length: int, firsts: list[int]) -> list[Row]:
        """One execution for each first number, all at once."""
        ...

    async def run_loop(self, items: int, *, each: bool) -> Row:
        """`each`: every item is recorded for itself."""
        ...

    async def pass_rows(self, rows: int) -> Row: ...
    async def begin_loop(self, items: int, file: Path) -> str:
        """Start a loop whose items each leave a line in the file. Returns its id at once."""
        ...

    async def lose_worker(self) -> None:
        """Kill the process that runs items, and do what its users would do then."""
        ...

    async def finish_loop(self, loop_id: str) -> Row: ...


# ---- ours --------------------------------------------------------------------------------------------------------------


class ApiClient:
    """The HTTP API over connections that are kept. A general client would take a good part of the measured cores."""

    def __init__(self, url: str, home: Path) -> None:
        """`home` of the server: it has the token of its user."""
        parts = urlsplit(url)
        self._home = home
        self._token: str | None = None
        self._host, self._port = str(parts.hostname), int(parts.port or 80)
        self._idle: deque[HttpConnection] = deque()

    async def send_request(self, method: str, path: str, body: Row | None = None) -> WireResponse:
        """Raises OSError or ResponseLost if no server answers."""
        connection = self._take_connection() or await self._connect()
        data = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: {self._host}:{self._port}\r\nContent-Length: {len(data)}\r\n"
        if data:
            head += "Content-Type: application/json\r\n"
        if self._token is None:
            self._token = read_token_file(self._home, "admin")
        if self._token is None:
            connection.abort()
            raise ConnectionRefusedError("the server has not made its token yet")
        head += f"Authorization: Bearer {self._token}\r\n"
        async with asyncio.timeout(HANG_LIMIT_S):
            response = await connection.send_request(f"{head}\r\n".encode(), data)
        if not connection.closed:
            connection.last_used_at = asyncio.get_running_loop().time()
            self._idle.append(connection)
        return response

    async def ask(self, method: str, path: str, body: Row | None = None) -> Any:
        response = await self.send_request(method, path, body)
        assert response.status in (200, 201, 202), (path, response)
        return json.loads(response.body)

    async def register(self, text: str) -> None:
        await self.ask("POST", "/api/catalog/register", {"content": text})

    async def start(self, path: str, payload: Row) -> str:
        started = await self.ask("POST", "/api/execute", {"path": path, "payload": payload})
        return str(started["execution_id"])

    async def run(self, path: str, payload: Row, step: str) -> Row:
        """Start an execution, wait for its end, and read the result of this step."""
        return await self.read_end(await self.start(path, payload), step)

    async def read_end(self, execution_id: str, step: str) -> Row:
        """Wait for the end of an execution, and read the result of this step."""
        status: Row = {"ended": False}
        while not status["ended"]:
            status = await self.ask("GET", f"/api/executions/{execution_id}/status?wait=30")
        assert status["status"] == "completed", status
        place = f"/api/executions/{execution_id}/result/{step}/data?format=json"
        result: Row = await self.ask("GET", place)
        return result

    def _take_connection(self) -> HttpConnection | None:
        """A connection that the server has not closed, and is not about to close because it was idle."""
        oldest = asyncio.get_running_loop().time() - MAX_IDLE_S
        while self._idle:
            connection = self._idle.pop()
            if not connection.closed and connection.last_used_at > oldest:
                return connection
            connection.abort()
        return None

    async def _connect(self) -> HttpConnection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(HttpConnection, self._host, self._port)
        return connection

    def close(self) -> None:
        while self._idle:
            self._idle.pop().abort()


async def retry_until_reached(act: Callable[[], Awaitable[Any]]) -> Any:
    """Repeat until a server answers."""
    async with asyncio.timeout(HANG_LIMIT_S):
        while True:
            try:
                return await act()
            except (OSError, ResponseLost):
                await asyncio.sleep(RETRY_S)


class OwnSystem:
    """What both ways to run ours have in common: they are asked in the same words."""

    name = ""

    def __init__(self, home: Path, dsn: str) -> None:
        self.home = home
        self.url = free_address()
        self.client = ApiClient(self.url, home)
        self._dsn = dsn

    async def start_processes(self) -> None:
        raise NotImplementedError

    async def start_noetl(self, *command: str) -> Process:
        settings = {"NOETL_DB_URL": self._dsn, "NOETL_SERVER_URL": self.url}
        return await start_process(self.home, "-m", "noetl", *command, **settings)

    @property
    def port(self) -> str:
        return self.url.rpartition(":")[2]

    async def open(self) -> Row:
        await self.start_processes()
        text = make_chain("first", 1)
        await retry_until_reached(lambda: self.client.register(text))
        return await self.client.run("bench/first", {"i": 7}, "s0")

    async def prepare(self, lengths: list[int]) -> None:
        texts = [make_chain(f"chain{length}", length) for length in lengths]
        texts += [make_loop("loop"), make_loop("each", chunk=1), make_rows_playbook()]
        texts.append(make_loop("marks", MARK_ITEM, chunk=1, file="{{ workload.file }}"))
        for text in texts:
            await self.client.register(text)

    async def run_chains(self, length: int, firsts: list[int]) -> list[Row]:
        path, last = f"bench/chain{length}", f"s{length - 1}"
        runs = (self.client.run(path, {"i": i}, last) for i in firsts)
        return await asyncio.gather(*runs)

    async def run_loop(self, items: int, *, each: bool) -> Row:
        path = "bench/each" if each else "bench/loop"
        payload = {"items": list(range(items))}
        return await self.client.run(path, payload, "total")

    async def pass_rows(self, rows: int) -> Row:
        return await self.client.run("bench/rows", {"n": rows}, "add")

    async def begin_loop(self, items: int, file: Path) -> str:
        payload = {"items": list(range(items)), "file": str(file)}
        return await self.client.start("bench/marks", payload)

    async def finish_loop(self, loop_id: str) -> Row:
        result: Row = await retry_until_reached(lambda: self.client.read_end(loop_id, "total"))
        return result


def make_rows_playbook() -> str:
    """A step makes rows, the next one adds up a column of them."""
    make = {"kind": "python", "input": {"n": "{{ workload.n }}"}, "code": MAKE_ROWS}
    add = {"kind": "python", "input": {"rows": "{{ make }}"}, "code": ADD_ROWS}
    steps = [{"step": "make", "tool": make, "next": "add"}, {"step": "add", "tool": add}]
    return make_playbook("rows", steps)


class DevSystem(OwnSystem):
    """`noetl dev`: server and worker are one process, which is killed and started again."""

    name = "dev"
    _process: Process

    async def start_processes(self) -> None:
        folder = self.home / "playbooks"
        folder.mkdir(parents=True, exist_ok=True)
        self._process = await self.start_noetl("dev", str(folder), "--port", self.port)

    async def close(self) -> None:
        self.client.close()
        await stop_process(self._process)

    def list_processes(self) -> dict[str, list[int]]:
        pid = self._process.pid
        return {"process": [pid], "children": list_descendants(pid)}

    async def lose_worker(self) -> None:
        self._process.kill()
        await self._process.communicate()
        await self.start_processes()


class ProcessesSystem(OwnSystem):
    """`noetl server start` and `noetl worker start`. A second worker runs beside the one that is killed."""

    name = "processes"
    _server: Process

    def __init__(self, home: Path, dsn: str) -> None:
        super().__init__(home, dsn)
        self._workers: list[Process] = []

    async def start_processes(self) -> None:
        self._server = await self.start_noetl("server", "start", "--port", self.port)
        await self._start_worker()

    async def _start_worker(self) -> None:
        self._workers.append(await self.start_noetl("worker", "start"))

    async def close(self) -> None:
        self.client.close()
        for process in (*self._workers, self._server):
            await stop_process(process)

    def list_processes(self) -> dict[str, list[int]]:
        pids = [worker.pid for worker in self._workers]
        children = [child for pid in pids for child in list_descendants(pid)]
        return {"server": [self._server.pid], "worker": pids, "children": children}

    async def begin_loop(self, items: int, file: Path) -> str:
        await self._start_worker()
        async with asyncio.timeout(HANG_LIMIT_S):
            while len(await self.client.ask("GET", "/api/workers")) < len(self._workers):
                await asyncio.sleep(RETRY_S)
        return await super().begin_loop(items, file)

    async def lose_worker(self) -> None:
        worker = self._workers.pop(0)
        worker.kill()
        await worker.communicate()


# ---- DBOS --------------------------------------------------------------------------------------------------------------


class DbosSystem:
    """A process with DBOS in it, which is killed and started again. It is asked over its standard input."""

    name = "dbos"
    _process: Process

    def __init__(self, dsn: str, python: Path) -> None:
        self._dsn = dsn.replace("postgresql://", "postgresql+psycopg://")
        self._python = python

    async def open(self) -> Row:
        await self._start_process()
        return (await self.run_chains(1, [7]))[0]

    async def prepare(self, lengths: list[int]) -> None:
        """Its workflows are functions of the program."""

    async def _start_process(self) -> None:
        program = str(Path(__file__).with_name("peer_dbos.py"))
        self._process = await asyncio.create_subprocess_exec(
            str(self._python), program, self._dsn, stdin=PIPE, stdout=PIPE, limit=LINE
        )

    async def close(self) -> None:
        self._process.kill()  # its threads need not be waited for
        await self._process.communicate()

    def list_processes(self) -> dict[str, list[int]]:
        return {"process": [self._process.pid]}

    async def run_chains(self, length: int, firsts: list[int]) -> list[Row]:
        rows: list[Row] = await self._ask("chains", length, firsts)
        return rows

    async def run_loop(self, items: int, *, each: bool) -> Row:
        return await self._ask_row("loop", list(range(items)))

    async def pass_rows(self, rows: int) -> Row:
        return await self._ask_row("rows", MAKE_ROWS, ADD_ROWS, rows)

    async def begin_loop(self, items: int, file: Path) -> str:
        return str(await self._ask("begin_loop", file.name, list(range(items)), str(file)))

    async def lose_worker(self) -> None:
        self._process.kill()
        await self._process.communicate()
        await self._start_process()

    async def finish_loop(self, loop_id: str) -> Row:
        return await self._ask_row("result", loop_id)

    async def _ask_row(self, *request: Any) -> Row:
        row: Row = await self._ask(*request)
        return row

    async def _ask(self, *request: Any) -> Any:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(request).encode() + b"\n")
        async with asyncio.timeout(HANG_LIMIT_S):
            line = await process.stdout.readline()
        assert line, f"DBOS ended with {await process.wait()}"
        return json.loads(line)

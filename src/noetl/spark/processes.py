"""The worker's side of a process that talks to Spark: a request in, an answer out, prints as logs; gone when cancelled."""

import asyncio
import json
import socket
from typing import Any

from noetl.tools.nursery import ForkServer, ProcessLimits
from noetl.tools.port import Log, Progress, silent, unseen
from noetl.tools.python_pool import StreamLines

ENV = {
    "SPARK_CONNECT_MODE_ENABLED": "1",  # `from pyspark.sql import functions` means those of Connect
    "OPENBLAS_NUM_THREADS": "1",  # no threads where processes are forked
    "OMP_NUM_THREADS": "1",
    "GRPC_VERBOSITY": "NONE",
}
LIMITS = ProcessLimits(open_files=4096)
LARGEST_VALUE = 64 << 20  # bytes of JSON, as the python tool has it
LONGEST_LINE = LARGEST_VALUE + (1 << 20)
LINGER = (
    1.0  # seconds for the last lines of a process that code may have left behind with our streams
)


class SparkClientCrashed(Exception):
    """The process is gone and gave no answer."""

    def __init__(self, status: int) -> None:
        super().__init__(str(status))
        self.status = status


class Processes:
    def __init__(self) -> None:
        self._nursery = ForkServer("noetl.spark.child", ENV)

    async def close(self) -> None:
        await self._nursery.close()

    async def ask(
        self, request: dict[str, Any], log: Log = silent, progress: Progress = unseen
    ) -> dict[str, Any]:
        ours, theirs = socket.socketpair()
        out, out_end = socket.socketpair()
        err, err_end = socket.socketpair()
        ends = [out_end.detach(), err_end.detach(), theirs.detach()]
        process = self._nursery.spawn("spark", ends, {}, LIMITS, memory=0)
        printed = [
            asyncio.ensure_future(_follow(each, log, name))
            for each, name in ((out, "stdout"), (err, "stderr"))
        ]
        try:
            answer = await _talk(ours, request, progress)
            if answer is None:
                raise SparkClientCrashed(await asyncio.shield(process.ended))
            return answer
        except asyncio.CancelledError:
            await process.stop(grace=0)
            raise
        finally:
            await asyncio.wait(printed, timeout=LINGER)
            for each in printed:
                each.cancel()


async def _talk(
    ours: socket.socket, request: dict[str, Any], progress: Progress
) -> dict[str, Any] | None:
    reader, writer = await asyncio.open_connection(sock=ours, limit=LONGEST_LINE)
    try:
        body = json.dumps({**request, "limit": LARGEST_VALUE}).encode()
        writer.write(len(body).to_bytes(4, "big") + body)
        while line := await _line(reader):
            message = json.loads(line)
            if "answer" in message:
                answer: dict[str, Any] = message["answer"]
                return answer
            progress(f"spark {message['progress']}")
        return None
    finally:
        writer.close()


async def _line(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readline()
    except ConnectionError:
        return b""


async def _follow(end: socket.socket, log: Log, name: str) -> None:
    """What is printed, until the process is gone."""
    reader, writer = await asyncio.open_connection(sock=end)
    lines = StreamLines(name, log)
    try:
        while data := await reader.read(64 * 1024):
            lines.add(data)
    except ConnectionError:
        pass
    finally:
        lines.end()
        writer.close()

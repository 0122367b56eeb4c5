"""The worker's side of the client processes that talk to Spark.

A process takes one request and gives one answer. What it prints becomes log lines. It is killed
when the caller is cancelled.
"""

import asyncio
import json
import socket

from noetl.spark.messages import SparkAnswer, SparkRequest
from noetl.tools.nursery import ForkServer, ProcessLimits
from noetl.tools.port import Log, Progress, silent, unseen
from noetl.tools.python_pool import StreamLines

ENV = {
    "SPARK_CONNECT_MODE_ENABLED": "1",  # `from pyspark.sql import functions` imports Connect's
    "OPENBLAS_NUM_THREADS": "1",  # a process that forks must not have threads
    "OMP_NUM_THREADS": "1",
    "GRPC_VERBOSITY": "NONE",
}
LIMITS = ProcessLimits(open_files=4096)
LARGEST_VALUE = 64 << 20  # bytes of JSON, as with the python tool
LONGEST_LINE = LARGEST_VALUE + (1 << 20)
LINGER = 1.0  # seconds to wait for output: the code may leave a process that holds our streams


class SparkClientCrashed(Exception):
    """The client process has ended without an answer."""

    def __init__(self, status: int) -> None:
        super().__init__(str(status))
        self.status = status


class Processes:
    def __init__(self) -> None:
        self._nursery = ForkServer("noetl.spark.child", ENV)

    async def close(self) -> None:
        await self._nursery.close()

    async def ask(
        self,
        request: SparkRequest,
        log: Log = silent,
        progress: Progress = unseen,
    ) -> SparkAnswer:
        """Start a client process, send it the request, and return its answer."""
        ours, theirs = socket.socketpair()
        out, out_end = socket.socketpair()
        err, err_end = socket.socketpair()
        ends = [out_end.detach(), err_end.detach(), theirs.detach()]
        process = self._nursery.spawn("spark", ends, {}, LIMITS, memory=0)
        outputs = [
            asyncio.ensure_future(_follow(out, log, "stdout")),
            asyncio.ensure_future(_follow(err, log, "stderr")),
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
            await asyncio.wait(outputs, timeout=LINGER)
            for output in outputs:
                output.cancel()


async def _talk(
    ours: socket.socket,
    request: SparkRequest,
    progress: Progress,
) -> SparkAnswer | None:
    """The answer of the process, or None if it ends without one."""
    reader, writer = await asyncio.open_connection(sock=ours, limit=LONGEST_LINE)
    try:
        body = json.dumps({**request, "limit": LARGEST_VALUE}).encode()
        writer.write(len(body).to_bytes(4, "big") + body)
        while line := await _line(reader):
            message = json.loads(line)
            if "answer" in message:
                answer: SparkAnswer = message["answer"]
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
    """Log the lines of an output stream until it ends."""
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

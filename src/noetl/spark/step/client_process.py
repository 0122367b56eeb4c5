"""The worker's side of the client processes that talk to Spark.

A process takes one request and gives one answer. What it prints becomes log lines. It is killed
when the caller is cancelled.
"""

import asyncio
import socket

from noetl.spark.messages import (
    ClientLine,
    SparkAnswer,
    SparkRequest,
    decode_message,
    encode_message,
)
from noetl.tools.port import Log, Progress, discard_log, discard_progress
from noetl.tools.processes.fork_server import ForkServer
from noetl.tools.processes.messages import ProcessLimits
from noetl.tools.python.printed_lines import StreamLines

CLIENT_ENV = {
    "SPARK_CONNECT_MODE_ENABLED": "1",  # `from pyspark.sql import functions` imports Connect's
    "OPENBLAS_NUM_THREADS": "1",  # a process that forks must not have threads
    "OMP_NUM_THREADS": "1",
    "GRPC_VERBOSITY": "NONE",
}
CLIENT_LIMITS = ProcessLimits(open_files=4096)
MAX_VALUE_BYTES = 64 << 20  # bytes of JSON, as with the python tool
MAX_ANSWER_BYTES = MAX_VALUE_BYTES + (1 << 20)
# Seconds to wait for output: the code may leave a process that holds our streams.
OUTPUT_WAIT_S = 1.0


class SparkClientCrashed(Exception):
    """The client process has ended without an answer."""

    def __init__(self, status: int) -> None:
        super().__init__(str(status))
        self.status = status


class SparkClients:
    def __init__(self) -> None:
        self._fork_server = ForkServer("noetl.spark.client.process", CLIENT_ENV)

    async def close(self) -> None:
        await self._fork_server.close()

    async def run_client(
        self,
        request: SparkRequest,
        log: Log = discard_log,
        progress: Progress = discard_progress,
    ) -> SparkAnswer:
        """Start a client process, send it the request, and return its answer."""
        ours, theirs = socket.socketpair()
        out, out_end = socket.socketpair()
        err, err_end = socket.socketpair()
        ends = [out_end.detach(), err_end.detach(), theirs.detach()]
        process = self._fork_server.spawn("spark", ends, {}, CLIENT_LIMITS, memory=0)
        outputs = [
            asyncio.ensure_future(_follow_output(out, log, "stdout")),
            asyncio.ensure_future(_follow_output(err, log, "stderr")),
        ]
        try:
            answer = await _exchange_messages(ours, request, progress)
            if answer is None:
                raise SparkClientCrashed(await asyncio.shield(process.ended))
            return answer
        except asyncio.CancelledError:
            await process.stop(grace=0)
            raise
        finally:
            await asyncio.wait(outputs, timeout=OUTPUT_WAIT_S)
            for output in outputs:
                output.cancel()


async def _exchange_messages(
    ours: socket.socket,
    request: SparkRequest,
    progress: Progress,
) -> SparkAnswer | None:
    """The answer of the process, or None if it ends without one."""
    reader, writer = await asyncio.open_connection(sock=ours, limit=MAX_ANSWER_BYTES)
    try:
        body = encode_message(request)
        writer.write(len(body).to_bytes(4, "big") + body)
        while line := await _read_line(reader):
            message = decode_message(line, ClientLine)
            if message.answer is not None:
                return message.answer
            progress(f"spark {message.progress}")
        return None
    finally:
        writer.close()


async def _read_line(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readline()
    except ConnectionError:
        return b""


async def _follow_output(end: socket.socket, log: Log, name: str) -> None:
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

"""What Spark's tasks may ask of the worker whose command they work for, and how.

A task is given a ticket in place of any secret: where that worker listens, and a key made for this command alone. With it, for
as long as the command runs, a task asks for what the command itself may have: an address of a file that is good for a while, the
fields of a credential. Question and answer are sealed with the key, so that nobody between two machines learns either.
"""

import asyncio
import base64
import json
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from noetl.model.errors import Failure, NoetlError, Unavailable
from noetl.spark.profiles import Profile

LOOPBACK = "127.0.0.1"
PATIENCE = 60.0  # seconds for a question, and for its answer
LARGEST = 16 << 20  # bytes of either
_QUESTION, _ANSWER = b"question", b"answer"
_NONCE, _LENGTH = 12, 4

Answering = Callable[[dict[str, Any]], Awaitable[Any]]


class TicketRefused(Exception):
    """The worker has no answer to this; `failure` says why."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


# ---- the worker ------------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def issued(answer: Answering, host: str = LOOPBACK) -> AsyncIterator[str]:
    """A ticket; it is good until the block ends. `answer` may raise `Refused`."""
    key = AESGCM.generate_key(256)
    sealing = AESGCM(key)
    asked: set[asyncio.Task[None]] = set()

    async def heard(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "each connection is a task"
        asked.add(task)
        try:
            async with asyncio.timeout(PATIENCE):
                question = json.loads(_opened(sealing, await _received(reader), _QUESTION))
                writer.write(
                    _framed(
                        _sealed(
                            sealing, json.dumps(await _told(answer, question)).encode(), _ANSWER
                        )
                    )
                )
                await writer.drain()
        except (InvalidTag, ValueError, OSError, EOFError, TimeoutError):
            pass  # no holder of the ticket, or one that is gone
        finally:
            asked.discard(task)
            writer.close()

    server = await asyncio.start_server(heard, host, 0)
    try:
        port = server.sockets[0].getsockname()[1]
        yield f"{host}:{port}:{base64.urlsafe_b64encode(key).decode()}"
    finally:
        server.close()
        for each in list(asked):
            each.cancel()


async def _told(answer: Answering, question: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"answer": await answer(question)}
    except TicketRefused as refused:
        return {"refused": refused.failure.shown()}
    except NoetlError as error:  # a store that does not answer, or refuses
        retryable = isinstance(error, Unavailable)
        return {
            "refused": Failure(code=error.code, message=str(error), retryable=retryable).shown()
        }


async def _received(reader: asyncio.StreamReader) -> bytes:
    size = int.from_bytes(await reader.readexactly(_LENGTH), "big")
    if size > LARGEST:
        raise ValueError(size)
    return await reader.readexactly(size)


def facing(profile: Profile) -> str:
    """The address of this machine as the executors of a profile see it."""
    place = urlsplit(profile.url or profile.master or "")
    if place.hostname is None:
        return LOOPBACK
    family, _, _, _, address = socket.getaddrinfo(
        place.hostname, place.port or 15002, type=socket.SOCK_DGRAM
    )[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)  # nothing is sent: the system only chooses a way
        ours: str = probe.getsockname()[0]
        return ours


# ---- a task ----------------------------------------------------------------------------------------------------------------


def ask(ticket: str, **question: Any) -> Any:
    """The worker's answer. `Refused`, when it has none; OSError, when it is gone."""
    host, port, key = ticket.rsplit(":", 2)
    sealing = AESGCM(base64.urlsafe_b64decode(key))
    with socket.create_connection((host, int(port)), PATIENCE) as connection:
        connection.sendall(_framed(_sealed(sealing, json.dumps(question).encode(), _QUESTION)))
        with connection.makefile("rb") as stream:
            size = int.from_bytes(stream.read(_LENGTH), "big")
            data = stream.read(size)
    if not data:
        raise ConnectionError("the worker of this command did not answer")
    told = json.loads(_opened(sealing, data, _ANSWER))
    if "refused" in told:
        raise TicketRefused(Failure(**told["refused"]))
    return told["answer"]


# ---- both ------------------------------------------------------------------------------------------------------------------


def _sealed(sealing: AESGCM, data: bytes, what: bytes) -> bytes:
    nonce = os.urandom(_NONCE)
    return nonce + sealing.encrypt(nonce, data, what)


def _opened(sealing: AESGCM, data: bytes, what: bytes) -> bytes:
    return sealing.decrypt(data[:_NONCE], data[_NONCE:], what)


def _framed(data: bytes) -> bytes:
    return len(data).to_bytes(_LENGTH, "big") + data

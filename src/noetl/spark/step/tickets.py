"""Questions of Spark's tasks to the worker of their command.

A task gets a ticket instead of secrets: the address on which the worker listens, and a key made for
this command. While the command runs, a task may ask for what the command itself may have: a signed
URL of a file, or the fields of a credential. Question and answer are encrypted with the key.
"""

import asyncio
import base64
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from noetl.model.errors import Failure, NoetlError, Unavailable
from noetl.spark.messages import TicketQuestion, TicketReply, decode_message, encode_message
from noetl.spark.profiles import LOOPBACK

TICKET_TIMEOUT_S = 60.0  # seconds for a question and its answer
MAX_QUESTION_BYTES = 16 << 20  # bytes of a question
_QUESTION, _ANSWER = b"question", b"answer"
_NONCE_BYTES, _LENGTH_BYTES = 12, 4

TicketAnswerer = Callable[[TicketQuestion], Awaitable[Any]]


class TicketRefused(Exception):
    """The worker refuses to answer; `failure` says why."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


# ---- the worker ------------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def issue_ticket(answer: TicketAnswerer, host: str = LOOPBACK) -> AsyncIterator[str]:
    """Listen for questions, and yield a ticket that is valid until the block ends.

    `answer` may raise `TicketRefused`.
    """
    key = AESGCM.generate_key(256)
    cipher = AESGCM(key)
    connections: set[asyncio.Task[None]] = set()

    async def handle_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "each connection is a task"
        connections.add(task)
        try:
            async with asyncio.timeout(TICKET_TIMEOUT_S):
                data = _decrypt_message(cipher, await _read_frame(reader), _QUESTION)
                question = decode_message(data, TicketQuestion)
                reply = encode_message(await _make_reply(answer, question))
                writer.write(_add_length(_encrypt_message(cipher, reply, _ANSWER)))
                await writer.drain()
        except (InvalidTag, ValueError, OSError, EOFError, TimeoutError):
            pass  # the client has no ticket, or it is gone
        finally:
            connections.discard(task)
            writer.close()

    server = await asyncio.start_server(handle_connection, host, 0)
    try:
        port = server.sockets[0].getsockname()[1]
        yield f"{host}:{port}:{base64.urlsafe_b64encode(key).decode()}"
    finally:
        server.close()
        for connection in list(connections):
            connection.cancel()


async def _make_reply(answer: TicketAnswerer, question: TicketQuestion) -> TicketReply:
    """The reply to a question: the answer, or the reason of a refusal."""
    try:
        return TicketReply(await answer(question))
    except TicketRefused as refused:
        return TicketReply(refused=refused.failure)
    except NoetlError as error:  # a store does not answer, or refuses
        retryable = isinstance(error, Unavailable)
        failure = Failure(code=error.code, message=str(error), retryable=retryable)
        return TicketReply(refused=failure)


async def _read_frame(reader: asyncio.StreamReader) -> bytes:
    size = int.from_bytes(await reader.readexactly(_LENGTH_BYTES), "big")
    if size > MAX_QUESTION_BYTES:
        raise ValueError(size)
    return await reader.readexactly(size)


# ---- a task ----------------------------------------------------------------------------------------------------------------


def ask_ticket(ticket: str, question: TicketQuestion) -> Any:
    """The worker's answer. TicketRefused if the worker has none, OSError if it is gone."""
    host, port, key = ticket.rsplit(":", 2)
    cipher = AESGCM(base64.urlsafe_b64decode(key))
    with socket.create_connection((host, int(port)), TICKET_TIMEOUT_S) as connection:
        data = encode_message(question)
        connection.sendall(_add_length(_encrypt_message(cipher, data, _QUESTION)))
        with connection.makefile("rb") as stream:
            size = int.from_bytes(stream.read(_LENGTH_BYTES), "big")
            data = stream.read(size)
    if not data:
        raise ConnectionError("the worker of this command did not answer")
    reply = decode_message(_decrypt_message(cipher, data, _ANSWER), TicketReply)
    if reply.refused is not None:
        raise TicketRefused(reply.refused)
    return reply.answer


# ---- both ------------------------------------------------------------------------------------------------------------------


def _encrypt_message(cipher: AESGCM, data: bytes, purpose: bytes) -> bytes:
    nonce = os.urandom(_NONCE_BYTES)
    return nonce + cipher.encrypt(nonce, data, purpose)


def _decrypt_message(cipher: AESGCM, data: bytes, purpose: bytes) -> bytes:
    return cipher.decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], purpose)


def _add_length(data: bytes) -> bytes:
    return len(data).to_bytes(_LENGTH_BYTES, "big") + data

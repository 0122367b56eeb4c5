"""What tasks ask of the worker of their command."""

import asyncio
import base64
import os
import socket
from typing import Any

import pytest

from noetl.model.errors import Failure, StoreUnavailable
from noetl.spark.messages import TicketQuestion
from noetl.spark.profiles import (
    LOOPBACK,
    SparkUnavailable,
    find_local_address,
    parse_profile,
)
from noetl.spark.step.tickets import TicketRefused, ask_ticket, issue_ticket


async def answer(question: TicketQuestion) -> Any:
    if question.secret == "away":
        raise StoreUnavailable("the store is away")
    if question.secret != "pg":
        raise TicketRefused(
            Failure(code="CREDENTIAL_MISSING", message="there is none", kind="auth")
        )
    return {"password": "xyzzy", "asked": question.provider}


def test_whoever_has_a_ticket_is_answered_until_the_command_ends() -> None:
    async def use_ticket() -> str:
        async with issue_ticket(answer) as ticket:
            told = await asyncio.to_thread(
                ask_ticket, ticket, TicketQuestion(secret="pg", provider="p")
            )
            assert told == {"password": "xyzzy", "asked": "p"}
            with pytest.raises(TicketRefused, match="there is none") as refused:
                await asyncio.to_thread(ask_ticket, ticket, TicketQuestion(secret="another"))
            assert (refused.value.failure.code, refused.value.failure.kind) == (
                "CREDENTIAL_MISSING",
                "auth",
            )
            with pytest.raises(TicketRefused, match="the store is away") as refused:
                await asyncio.to_thread(ask_ticket, ticket, TicketQuestion(secret="away"))
            assert refused.value.failure.retryable
            assert "xyzzy" not in ticket
        return ticket

    ticket = asyncio.run(use_ticket())
    with pytest.raises(OSError, match="refused"):
        ask_ticket(ticket, TicketQuestion(secret="pg"))


def test_nobody_else_is_answered() -> None:
    async def use_ticket() -> None:
        async with issue_ticket(answer) as ticket:
            host, port, _ = ticket.rsplit(":", 2)
            forged = f"{host}:{port}:{base64.urlsafe_b64encode(os.urandom(32)).decode()}"
            with pytest.raises(ConnectionError):
                await asyncio.to_thread(ask_ticket, forged, TicketQuestion(secret="pg"))
            for noise in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 8, b"\0\0\0\4abcd"):
                assert await asyncio.to_thread(_send_bytes, host, int(port), noise) == b""

    asyncio.run(use_ticket())


def _send_bytes(host: str, port: int, data: bytes) -> bytes:
    with socket.create_connection((host, port)) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        return connection.recv(100)


def test_nothing_passes_in_clear() -> None:
    seen = bytearray()

    async def use_ticket() -> None:
        async with issue_ticket(answer) as ticket:
            host, port, key = ticket.rsplit(":", 2)

            async def between(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                inner, outer = await asyncio.open_connection(host, int(port))
                for source, target in ((reader, outer), (inner, writer)):
                    head = await source.readexactly(4)
                    data = await source.readexactly(int.from_bytes(head, "big"))
                    seen.extend(data)
                    target.write(head + data)
                writer.close()
                outer.close()

            server = await asyncio.start_server(between, LOOPBACK, 0)
            through = f"{LOOPBACK}:{server.sockets[0].getsockname()[1]}:{key}"
            answered = await asyncio.to_thread(ask_ticket, through, TicketQuestion(secret="pg"))
            assert answered["password"] == "xyzzy"
            server.close()

    asyncio.run(use_ticket())
    assert len(seen) > 50
    assert b"xyzzy" not in seen
    assert b"pg" not in seen


@pytest.mark.parametrize(
    "where",
    [
        "local",
        "sc://localhost:15002/;token=x",
        "cluster:spark://127.0.0.1:7077",
        "cluster:spark://127.0.0.1:7077,elsewhere:7077",
    ],
)
def test_executors_of_this_machine_are_met_on_loopback(where: str) -> None:
    assert find_local_address(parse_profile(where)) == LOOPBACK


def test_address_of_a_master_that_is_none_says_so() -> None:
    with pytest.raises(SparkUnavailable, match="spark://localhost:port cannot be reached"):
        find_local_address(parse_profile("cluster:spark://localhost:port"))

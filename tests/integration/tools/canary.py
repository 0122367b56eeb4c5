"""Runs inside a network namespace of its own: calls every spelling, and prints which connections were made.

The namespace has all addresses that matter on its loopback device. A listener at ports 80 and 8082 of every address counts
whoever connects, with the address that was connected to. Names are resolved by a DNS server that changes some of its
answers every time.

unshare --net --mount python -m tests.integration.tools.canary
"""

import asyncio
import json
import socket
import struct
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable
from contextlib import suppress
from ipaddress import ip_address
from typing import Any
from urllib.parse import quote, unquote

from noetl.runtime.event_loop import run_in_loop
from noetl.tools.credentials.oauth import TokenCache
from noetl.tools.egress.guard import EgressGuard
from noetl.tools.egress.rules import EgressRules
from noetl.tools.http.tool import Http
from noetl.tools.nats import Nats
from noetl.tools.port import Failed, Outcome
from noetl.tools.postgres.tool import Postgres
from noetl.tools.sink.tool import SinkTool
from tests.integration.tools.spellings import (
    FIXED_NAMES,
    list_api_urls,
    list_metadata_urls,
    list_private_urls,
)
from tests.unit.tools.calls import call

PUBLIC = "93.184.216.34"
ADDRESSES = (
    "169.254.169.254", "169.254.170.2", "169.254.0.1", "100.100.100.200", "168.63.129.16", "192.0.0.192", "10.0.0.7",
    "100.64.0.7", "192.168.7.7", "172.16.7.7", "198.18.0.7", PUBLIC, "93.184.216.35", "93.184.216.36", "fd00:ec2::254",
    "fd00:ec2::23", "fd20:ce::254", "fd12::7", "fe80::7", "fec0::7", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1", "2002:a00:7::1",
    "::a9fe:a9fe", "::ffff:0:a9fe:a9fe", "2001:0:a9fe:a9fe::", "2606:4700::5efe:a9fe:a9fe",
)  # fmt: skip
PORTS = (80, 8082)
API = "http://api.noetl.test:8082"
REBINDS = 40  # calls of each name whose address changes
DNS_HEADER = struct.Struct("!HHHHHH")
A_RECORD, AAAA_RECORD = 1, 28


def make_namespace() -> None:
    """Addresses on the loopback device, and a resolver that asks this process."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    for address in ADDRESSES:
        length = 128 if ":" in address else 32
        command = ["ip", "addr", "add", f"{address}/{length}", "dev", "lo"]
        subprocess.run(command, check=True)
    with tempfile.NamedTemporaryFile("w", delete=False) as file:
        file.write("nameserver 127.0.0.53\noptions timeout:1 attempts:1\n")
    subprocess.run(["mount", "--bind", file.name, "/etc/resolv.conf"], check=True)
    with tempfile.NamedTemporaryFile("w", delete=False) as hosts:
        hosts.write("")
    subprocess.run(["mount", "--bind", hosts.name, "/etc/hosts"], check=True)


# ---- the resolver ------------------------------------------------------------------------------------------------------


class Resolver(asyncio.DatagramProtocol):
    """Answers by `FIXED_NAMES`. `flip.test` is public and metadata in turn, `late.test` is public at first; both for every
    family of a lookup. `flip6.test` changes to IPv6."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, sender: Any) -> None:
        labels: list[str] = []
        place = DNS_HEADER.size
        while size := data[place]:
            labels.append(data[place + 1 : place + 1 + size].decode("latin-1"))
            place += 1 + size
        question = data[DNS_HEADER.size : place + 5]
        kind = int.from_bytes(data[place + 1 : place + 3])
        name = ".".join(labels).lower()
        self.asked[name] += 1
        addresses = self._find(name)
        code = 3 if addresses is None else 0
        wanted = {A_RECORD: 4, AAAA_RECORD: 6}.get(kind)
        answers = b""
        count = 0
        for address in map(ip_address, addresses or []):
            if address.version == wanted:
                packed = address.packed
                answers += struct.pack("!HHHIH", 0xC00C, kind, 1, 0, len(packed)) + packed
                count += 1
        head = DNS_HEADER.pack(int.from_bytes(data[:2]), 0x8180 | code, 1, count, 0, 0)
        self._transport.sendto(head + question + answers, sender)

    def _find(self, name: str) -> list[str] | None:
        lookup = (self.asked[name] - 1) // 2  # each asks for both families
        match name:
            case "flip.test":
                return [PUBLIC, "169.254.169.254"][lookup % 2 :][:1]
            case "flip6.test":
                return [PUBLIC, "fd00:ec2::254"][lookup % 2 :][:1]
            case "late.test":
                return [PUBLIC] if lookup < 3 else ["169.254.169.254"]
            case "flipapi.test":
                return [PUBLIC, "127.0.0.1"][lookup % 2 :][:1]
            case "steady.test":
                return [PUBLIC]
        return FIXED_NAMES.get(name)


# ---- the listener ------------------------------------------------------------------------------------------------------


class Canary:
    """Counts connections by the address and port that they were made to. Answers redirects at `/to/CODE/URL`."""

    def __init__(self) -> None:
        self.connections: Counter[tuple[str, int]] = Counter()

    async def start(self) -> None:
        for port in PORTS:
            await asyncio.start_server(self._serve, "0.0.0.0", port, family=socket.AF_INET)
            await asyncio.start_server(self._serve, "::", port, family=socket.AF_INET6)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        address, port = writer.get_extra_info("sockname")[:2]
        self.connections[str(ip_address(address.partition("%")[0])), port] += 1
        with suppress(OSError, ValueError, asyncio.CancelledError):
            while (await reader.read(1)).isalpha():  # other protocols begin with other bytes
                line = await reader.readline()
                target = line.decode("latin-1").split(" ")[1]
                while (await reader.readline()).strip():
                    pass
                writer.write(_make_answer(target))
                if not target.startswith("/keep"):
                    break
        writer.close()

    def take(self) -> list[str]:
        """The connections since the last time, other than those to a public address at port 80."""
        taken, self.connections = self.connections, Counter()
        return [
            f"{address}:{port}"
            for address, port in taken
            if port != 80 or not address.startswith("93.184.216.")
        ]


def _make_answer(target: str) -> bytes:
    if target.startswith("/to/"):
        _, _, code, url = target.split("/", 3)
        location = unquote(url).encode("utf-8", "surrogateescape")
        location = location.replace(b"\r", b"").replace(b"\n", b"")
        return (
            f"HTTP/1.1 {code} Found\r\nContent-Length: 0\r\nLocation: ".encode()
            + location
            + b"\r\n\r\n"
        )
    return b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


# ---- the calls ---------------------------------------------------------------------------------------------------------


async def describe(outcome: Awaitable[Outcome]) -> str:
    found = await outcome
    return found.failure.code if isinstance(found, Failed) else "reached"


async def call_all(http: Http, canary: Canary, urls: list[str], **more: Any) -> dict[str, Any]:
    """How each URL ended, called as it is and by redirects from a public server; and what it has connected to."""
    ended: dict[str, str] = {}
    reached: dict[str, list[str]] = {}
    for url in urls:
        encoded = quote(url, safe="")
        again = quote(f"http://public.test/to/302/{encoded}", safe="")
        forms = {
            url: url,
            f"302 {url}": f"http://public.test/to/302/{encoded}",
            f"307 {url}": f"http://{PUBLIC}/to/307/{encoded}",
            f"302 302 {url}": f"http://public.test/to/301/{again}",
        }
        for name, form in forms.items():
            ended[name] = await describe(http.run(call({"url": form}, **more)))
            if connections := canary.take():
                reached[name] = connections
    return {"count": len(urls), "ended": ended, "reached": reached}


async def call_changing_names(http: Http, canary: Canary, resolver: Resolver) -> dict[str, Any]:
    ended: Counter[str] = Counter()
    for name in ("flip.test", "flip6.test", "late.test"):
        for _ in range(REBINDS):
            outcome = await describe(http.run(call({"url": f"http://{name}/"})))
            ended[f"{name} {outcome}"] += 1
    for _ in range(REBINDS):
        outcome = await describe(
            http.run(call({"url": "http://flipapi.test:8082/"}, auth={"token": "t"}))
        )
        ended[f"flipapi.test {outcome}"] += 1
    reached = [each for each in canary.take() if each != f"{PUBLIC}:8082"]
    return {"ended": ended, "reached": reached}


async def count_lookups(http: Http, resolver: Resolver) -> int:
    for _ in range(50):
        assert await describe(http.run(call({"url": "http://steady.test/keep"}))) == "reached"
    return resolver.asked["steady.test"]


async def call_other_tools(guard: EgressGuard, canary: Canary) -> dict[str, Any]:
    hosts = (
        "169.254.169.254",
        "0xa9fea9fe",
        "::ffff:169.254.169.254",
        "fd00:ec2::254",
        "metadata.test",
        "both.test",
    )
    ended: dict[str, list[str]] = {}
    for host in hosts:
        place = f"[{host}]:80" if ":" in host else f"{host}:80"
        postgres = Postgres(guard)
        sink = SinkTool(lambda: None, lambda: None, guard)  # type: ignore[arg-type, return-value]  # neither is asked for
        calls: dict[str, Awaitable[Outcome]] = {
            "postgres host": postgres.run(_make_sql_call({"host": host, "port": 80})),
            "postgres hostaddr": postgres.run(_make_sql_call({"dsn": f"host=public.test hostaddr={host} port=80"})),
            "postgres hosts": postgres.run(_make_sql_call({"dsn": f"host=public.test,{host} port=80"})),
            "nats": Nats(None, guard).run(_make_nats_call(f"nats://{place}")),
            "nats ws": Nats(None, guard).run(_make_nats_call(f"ws://{place}")),
            "object": sink.run(_make_object_call({"endpoint": f"http://{place}"})),
            "object tls": sink.run(_make_object_call({"endpoint": f"https://{place}"})),
            "object metadata": sink.run(_make_object_call({"metadata_endpoint": f"http://{place}"}, has_keys=False)),
            "object proxy": sink.run(_make_object_call({"proxy_url": f"http://{place}"})),
        }  # fmt: skip
        for name, outcome in calls.items():
            ended.setdefault(name, []).append(await describe(outcome))
        try:
            await TokenCache(guard).get(f"http://{place}/token", {"client_id": "me"}, None, None)
        except Exception as error:
            ended.setdefault("oauth2", []).append(type(error).__name__)
    for _ in range(4):
        await describe(Postgres(guard).run(_make_sql_call({"host": "flip.test", "port": 80})))
        await describe(Nats(None, guard).run(_make_nats_call("nats://flip.test:80")))
    for _ in range(2):
        sink = SinkTool(lambda: None, lambda: None, guard)  # type: ignore[arg-type, return-value]  # neither is asked for
        await describe(sink.run(_make_object_call({"endpoint": "http://flip.test"})))
    return {"ended": ended, "reached": canary.take()}


def _make_sql_call(auth: dict[str, Any]) -> Any:
    return call({"query": "SELECT 1"}, auth=auth)


def _make_nats_call(url: str) -> Any:
    return call({"operation": "publish", "subject": "a", "value": 1}, auth={"url": url})


def _make_object_call(auth: dict[str, str], *, has_keys: bool = True) -> Any:
    """Without keys, the library asks the metadata service for those of the machine."""
    keys = {"access_key_id": "k", "secret_access_key": "s"} if has_keys else {}
    given = {**keys, "region": "r", **auth}
    target = {"kind": "object", "path": "s3://bucket/name.json"}
    return call({"target": target, "data": [{"a": 1}]}, auth=given)


async def call_unguarded(canary: Canary) -> list[str]:
    """What the canary sees of somebody without a guard: the test can fail."""
    for host in (
        "169.254.169.254",
        "0xa9fea9fe",
        "::ffff:169.254.169.254",
        "fd00:ec2::254",
        "metadata.test",
        "127.0.0.1",
    ):
        with suppress(OSError):
            _, writer = await asyncio.open_connection(host, 80)
            writer.write(b"GET / HTTP/1.0\r\n\r\n")
            await writer.drain()
            writer.close()
    for _ in range(10):
        with suppress(OSError):
            reader, writer = await asyncio.open_connection("flip.test", 80)
            writer.write(b"GET / HTTP/1.0\r\n\r\n")
            await reader.read()
            writer.close()
    return canary.take()


async def main() -> None:
    make_namespace()
    resolver, canary = Resolver(), Canary()
    loop = asyncio.get_running_loop()
    await loop.create_datagram_endpoint(lambda: resolver, local_addr=("127.0.0.53", 53))
    await canary.start()
    pool = EgressGuard(EgressRules(servers=(API,)))
    local = EgressGuard(EgressRules(allows_private=True, servers=(API,)))
    found: dict[str, Any] = {"unguarded": await call_unguarded(canary)}
    for name, guard in {"pool": pool, "local": local}.items():
        http = Http(guard)
        found[name] = {
            "metadata": await call_all(http, canary, list_metadata_urls()),
            "private": await call_all(http, canary, list_private_urls()),
            "api": await call_all(http, canary, list_api_urls()),
            "api with token": await call_all(http, canary, list_api_urls(), auth={"token": "t"}),
            "changing": await call_changing_names(http, canary, resolver),
            "others": await call_other_tools(guard, canary),
        }
        await http.close()
    http = Http(pool)
    found["public"] = await describe(http.run(call({"url": "http://public.test/"})))
    found["lookups"] = await count_lookups(http, resolver)
    await http.close()
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    run_in_loop(main())

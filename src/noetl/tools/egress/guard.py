"""Finds the addresses of a host, and refuses those that tools must not connect to.

Every address of a host is checked, and the caller connects to one that was checked: a name that
resolves to something else the next time gains nothing. Spellings need no rules of their own,
because the check looks at what the resolver makes of them. Checks happen when a connection is
opened; calls that reuse it cost nothing.

| address | a worker of a server | `noetl run`, `noetl dev` |
|---|---|---|
| link-local, metadata, multicast, unspecified, broadcast | refused | refused |
| the API of NoETL itself | needs a token in `auth` | needs a token in `auth` |
| private, shared (CGNAT), unique local, loopback | only what NOETL_HTTP_ALLOW names | allowed |
| public | allowed | allowed |

Databases and NATS are mostly in private networks, so of their addresses only the first row is
refused.
"""

import asyncio
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from urllib.parse import urlsplit

from noetl.model.errors import Failure
from noetl.tools.egress.addresses import (
    IpAddress,
    describe_private,
    describe_refused,
    is_on_this_machine,
    list_reached_addresses,
    parse_ip_address,
)
from noetl.tools.egress.rules import (
    ALLOW_SETTING,
    EgressRules,
    normalize_host,
    parse_allowed_target,
)

SERVER_LOOKUP_TTL_S = 30.0
DEFAULT_PORTS = {"http": 80, "https": 443}


class EgressRefused(Exception):
    """The guard refuses a host. `reason` has no part of the host, which may be secret."""

    def __init__(self, host: str, port: int, address: IpAddress | None, reason: str) -> None:
        self.reason = reason
        self.place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        if address is not None and parse_ip_address(host) != address:
            self.place += f" ({address})"
        super().__init__(f"{self.place} is refused: {reason}")

    def to_failure(self, shown_host: str | None = None) -> Failure:
        """The failure of a task. `shown_host` stands for a host that must not be shown."""
        place = self.place if shown_host is None else shown_host
        message = f"{place} is refused: {self.reason}"
        return Failure(code="EGRESS_REFUSED", kind="config", message=message)


def find_no_servers() -> Iterable[str]:
    return ()


class EgressGuard:
    """Checks the addresses that tools of one worker connect to.

    `find_servers` gives the URLs of more servers of NoETL that run on this machine now.
    """

    def __init__(
        self,
        rules: EgressRules | None = None,
        find_servers: Callable[[], Iterable[str]] = find_no_servers,
    ) -> None:
        self._rules = rules or EgressRules()
        self._allowed = [parse_allowed_target(text) for text in self._rules.allow]
        self._find_servers = find_servers
        self._server_addresses: dict[str, tuple[float, frozenset[IpAddress]]] = {}

    @property
    def rules(self) -> EgressRules:
        """The rules with the servers that run now, for another process."""
        servers = dict.fromkeys((*self._rules.servers, *self._find_servers()))
        return EgressRules(self._rules.allow, self._rules.allows_private, tuple(servers))

    async def find_addresses(self, host: str, port: int, *, has_token: bool = False) -> list[str]:
        """The addresses of a host for HTTP. `has_token`: the call has a token for the API of NoETL.

        Raises EgressRefused if one of them is not permitted, OSError if there are none.
        """
        addresses = await _resolve_host(host, port)
        for address in addresses:
            _refuse_forbidden(host, port, address)
        await self._refuse_own_api(host, port, addresses, has_token=has_token)
        for address in addresses:
            self._refuse_private(host, port, address)
        return [str(address) for address in addresses]

    async def find_database_addresses(self, host: str, port: int) -> list[str]:
        """The addresses of a database or a NATS server, which may be private."""
        addresses = await _resolve_host(host, port)
        for address in addresses:
            _refuse_forbidden(host, port, address)
        return [str(address) for address in addresses]

    def _refuse_private(self, host: str, port: int, address: IpAddress) -> None:
        if self._rules.allows_private:
            return
        description = describe_private(address)
        if description is None:
            return
        name = normalize_host(host)
        if any(target.includes(name, address, port) for target in self._allowed):
            return
        reason = f"it is {description}; if it is meant, name it in {ALLOW_SETTING} of the worker"
        raise EgressRefused(host, port, address, reason)

    # ---- the API of NoETL ------------------------------------------------------------------------

    async def _refuse_own_api(
        self, host: str, port: int, addresses: list[IpAddress], *, has_token: bool
    ) -> None:
        urls = self._rules.servers
        if any(describe_private(address) for address in addresses):
            urls = (*urls, *self._find_servers())
        for url in urls:
            server_host, server_port = _parse_server_url(url)
            if server_port != port:
                continue
            found = await self._find_own_address(host, addresses, server_host)
            if found is None:
                continue
            # A name that is not the server's own may resolve to it only because somebody wants to
            # get there, and the token is then not meant for it.
            is_own_name = normalize_host(host) in (server_host, "localhost")
            is_meant = is_own_name or parse_ip_address(host) is not None
            if not (has_token and is_meant):
                reason = "it is the API of NoETL itself; a task needs `auth` with a token for it"
                raise EgressRefused(host, port, found, reason)

    async def _find_own_address(
        self, host: str, addresses: list[IpAddress], server_host: str
    ) -> IpAddress | None:
        """The address that leads to the server; None if none of them does."""
        if normalize_host(host) == server_host:
            return addresses[0]
        server_addresses = await self._resolve_server(server_host)
        is_server_here = any(map(is_on_this_machine, server_addresses))
        for address in addresses:
            if not server_addresses.isdisjoint(list_reached_addresses(address)):
                return address
            if is_server_here and is_on_this_machine(address):
                return address
        return None

    async def _resolve_server(self, host: str) -> frozenset[IpAddress]:
        """The addresses of a server. Those that it had before still count."""
        now = time.monotonic()
        until, known = self._server_addresses.get(host, (0.0, frozenset[IpAddress]()))
        if now < until:
            return known
        with suppress(OSError):  # the worker cannot reach it either
            for address in await _resolve_host(host, 0):
                known = known.union(list_reached_addresses(address))
        self._server_addresses[host] = (now + SERVER_LOOKUP_TTL_S, known)
        return known


def _refuse_forbidden(host: str, port: int, address: IpAddress) -> None:
    description = describe_refused(address)
    if description is not None:
        reason = f"it is {description}, which no setting allows"
        raise EgressRefused(host, port, address, reason)


async def _resolve_host(host: str, port: int) -> list[IpAddress]:
    """All addresses of a host, each once, in the order of the resolver."""
    literal = parse_ip_address(host)
    if literal is not None:
        return [literal]
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP
        )
    except UnicodeError as error:
        raise OSError(f"{host!r} is not the name of a host: {error}") from None
    addresses: dict[IpAddress, None] = {}
    for _, _, _, _, target in found:
        address = parse_ip_address(str(target[0]))
        if address is not None:
            addresses[address] = None
    if not addresses:
        raise OSError(f"{host!r} has no address")
    return list(addresses)


def _parse_server_url(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    port = parts.port or DEFAULT_PORTS.get(parts.scheme, 80)
    return normalize_host(parts.hostname or ""), port

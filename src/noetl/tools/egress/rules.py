"""The rules of the egress guard: what an operator allows, and where NoETL itself listens."""

from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_network

from msgspec import Struct

from noetl.model.errors import InvalidInput
from noetl.tools.egress.addresses import IpAddress, list_reached_addresses

ALLOW_SETTING = "NOETL_HTTP_ALLOW"
MAX_PORT = 65_535


class EgressRules(Struct, frozen=True):
    """The rules as plain values, which can be sent to other processes."""

    # Hosts, addresses and networks that may be private, each with or without a port.
    allow: tuple[str, ...] = ()
    # Whether every private and loopback address is allowed.
    allows_private: bool = False
    # URLs of the servers that the worker belongs to.
    servers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AllowedTarget:
    """One entry of NOETL_HTTP_ALLOW: a host or a network, at one port or at all."""

    host: str | None
    network: IPv4Network | IPv6Network | None
    port: int | None

    def includes(self, host: str, address: IpAddress, port: int) -> bool:
        if self.port is not None and self.port != port:
            return False
        if self.network is None:
            return self.host == host
        for reached in list_reached_addresses(address):
            if reached.version != self.network.version or reached not in self.network:
                return False
        return True


def parse_allowed_target(text: str) -> AllowedTarget:
    """Read `host`, `address` or `network`, with or without `:port`. IPv6 needs brackets for a port.

    Raises InvalidInput if the text is none of them.
    """
    name, port = _split_port(text)
    try:
        return AllowedTarget(None, ip_network(name), port)
    except ValueError:
        pass
    if not _is_host_name(name):
        raise InvalidInput(
            f"{ALLOW_SETTING}: {text!r} is neither a host nor an address nor a network",
            hint="for example db.internal, 10.1.2.3:8080, 192.168.0.0/16, [fd12::]/64 or [fd12::1]:8080",
        )
    return AllowedTarget(normalize_host(name), None, port)


def _split_port(text: str) -> tuple[str, int | None]:
    name, port_text = text.strip(), ""
    if name.startswith("["):
        inside, bracket, rest = name[1:].partition("]")
        if not bracket:
            return "", None
        prefix, _, port_text = rest.partition(":")
        name = inside + prefix
    elif name.count(":") == 1:
        name, _, port_text = name.partition(":")
    if port_text.isascii() and port_text.isdigit() and 0 < int(port_text) <= MAX_PORT:
        return name, int(port_text)
    return (name, None) if not port_text else ("", None)


def _is_host_name(name: str) -> bool:
    letters = name.replace("-", "").replace(".", "").replace("_", "")
    has_letter = not letters.isdigit()
    return letters.isascii() and letters.isalnum() and has_letter


def normalize_host(host: str) -> str:
    """The host as it is compared: without case, and without the dot of a full name."""
    return host.lower().rstrip(".")

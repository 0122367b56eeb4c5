"""Says of an address what it is: public, private, of this machine, or one that is always refused.

An IPv6 address may have an IPv4 address in it that a gateway or the kernel connects to. Such an
address is judged by both.
"""

import socket
from collections.abc import Iterable
from contextlib import suppress
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

IpAddress = IPv4Address | IPv6Address

_REFUSED_NETWORKS = {
    "a link-local address, where clouds serve the metadata of machines": (
        "169.254.0.0/16",
        "fe80::/10",
    ),
    "a metadata address of a cloud": (
        "100.100.100.200/32",
        "168.63.129.16/32",
        "192.0.0.192/32",
        "fd00:ec2::/32",
        "fd20:ce::/32",
    ),
    "a multicast address": ("224.0.0.0/4", "ff00::/8"),
    "an unspecified address": ("0.0.0.0/8", "::/128"),
    "the broadcast address": ("255.255.255.255/32",),
}
REFUSED_NETWORKS = tuple(
    (ip_network(network), description)
    for description, networks in _REFUSED_NETWORKS.items()
    for network in networks
)
# Private addresses that some releases of Python count as public.
_MORE_PRIVATE_NETWORKS = tuple(
    ip_network(network) for network in ("192.0.0.0/24", "fec0::/10", "64:ff9b:1::/48")
)
_MAPPED = IPv6Network("::ffff:0:0/96")
# Networks whose addresses end in an IPv4 address: compatible, translated, NAT64.
_ENDING_NETWORKS = tuple(
    IPv6Network(network) for network in ("::/96", "::ffff:0:0:0/96", "64:ff9b::/96")
)
_LOCAL_NAT64 = IPv6Network("64:ff9b:1::/48")
_SIX_TO_FOUR = IPv6Network("2002::/16")
_TEREDO = IPv6Network("2001::/32")
_ISATAP_MARKS = (0x0000_5EFE, 0x0200_5EFE)
_LAST_32 = 0xFFFF_FFFF


def parse_ip_address(text: str) -> IpAddress | None:
    """The address of a literal. None for names, and for numbers that only a resolver understands."""
    try:
        return ip_address(text)
    except ValueError:
        return None


def list_reached_addresses(address: IpAddress) -> list[IpAddress]:
    """The address without zone, and the IPv4 addresses in it, by which it is judged."""
    if isinstance(address, IPv4Address):
        return [address]
    number = int(address)
    address = IPv6Address(number)
    if address in _MAPPED:
        return [IPv4Address(number & _LAST_32)]
    return [address, *map(IPv4Address, _list_embedded_numbers(address, number))]


def _list_embedded_numbers(address: IPv6Address, number: int) -> list[int]:
    if number <= 1:
        return []  # unspecified and loopback have no IPv4 address in them
    last = number & _LAST_32
    found: list[int] = []
    if any(address in network for network in _ENDING_NETWORKS):
        found.append(last)
    if address in _LOCAL_NAT64:
        # Either the end, or around the byte that RFC 6052 keeps free.
        found += [last, (number >> 64 & 0xFFFF) << 16 | number >> 40 & 0xFFFF]
    if address in _SIX_TO_FOUR:
        found.append(number >> 80 & _LAST_32)
    if address in _TEREDO:
        found += [number >> 64 & _LAST_32, last ^ _LAST_32]
    if number >> 32 & _LAST_32 in _ISATAP_MARKS:
        found.append(last)
    return found


def describe_refused(address: IpAddress) -> str | None:
    """What the address is, if no setting allows it; else None."""
    for reached in list_reached_addresses(address):
        for network, description in REFUSED_NETWORKS:
            if _is_in_any(reached, (network,)):
                return description
    return None


def _is_in_any(address: IpAddress, networks: Iterable[IPv4Network | IPv6Network]) -> bool:
    return any(address.version == network.version and address in network for network in networks)


def describe_private(address: IpAddress) -> str | None:
    """What the address is, if it is not public; else None."""
    for reached in list_reached_addresses(address):
        if reached.is_loopback:
            return "a loopback address"
        if not reached.is_global or _is_in_any(reached, _MORE_PRIVATE_NETWORKS):
            return "a private address"
    return None


def is_on_this_machine(address: IpAddress) -> bool:
    """Whether a connection to the address ends on this machine: a socket can be bound to it."""
    for reached in list_reached_addresses(address):
        if reached.is_loopback:
            return True
        family = socket.AF_INET6 if reached.version == 6 else socket.AF_INET
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(reached), 0))
            return True
    return False

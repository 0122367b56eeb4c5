"""The names under which a server answers.

A page of another site can give its own name the address of this server (rebinding). Its requests
then have that name as their Host, so a server answers under names that it knows: names of the
machine itself, the names that the operator allows, and the address at which a connection arrives.
"""

import ipaddress
from collections.abc import Iterable
from functools import lru_cache
from urllib.parse import urlsplit

from noetl.server.http.loopback import is_loopback


class AllowedHosts:
    """`names` are host names and addresses, each with or without a port."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = frozenset(name.strip().lower() for name in names)

    def allows(self, authority: str, own_address: str) -> bool:
        """Whether a request with this Host may pass. It came to this address of the machine."""
        host = _read_host(authority)
        if not host:
            return False
        if is_loopback(host) or host in self._names or authority.lower() in self._names:
            return True
        return _is_same_address(host, own_address)


@lru_cache(maxsize=256)
def _read_host(authority: str) -> str:
    """The name of a Host header without its port; empty if it is none."""
    try:
        parts = urlsplit(f"//{authority}")
        _ = parts.port  # raises if it is no number
    except ValueError:
        return ""
    if parts.username is not None or parts.path or parts.query or parts.fragment:
        return ""
    return parts.hostname or ""


@lru_cache(maxsize=256)
def _is_same_address(host: str, own_address: str) -> bool:
    try:
        named, own = ipaddress.ip_address(host), ipaddress.ip_address(own_address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(own, ipaddress.IPv6Address) and own.ipv4_mapped is not None:
        own = own.ipv4_mapped
    return named == own

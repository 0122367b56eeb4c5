"""Pins the hosts of a conninfo to addresses that the egress guard has checked.

libpq connects to `hostaddr` and uses `host` for certificates and passwords only. Local sockets have
no address and stay as they are.
"""

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from noetl.tools.egress.guard import EgressGuard

DEFAULT_PORT = "5432"


async def pin_conninfo_hosts(conninfo: str, guard: EgressGuard) -> str:
    """The conninfo with the addresses of its hosts, each host once per address.

    Raises EgressRefused, or psycopg's OperationalError if no host has an address.
    """
    fields = conninfo_to_dict(conninfo)
    hosts = _split_list(fields.get("host"))
    addresses = _split_list(fields.get("hostaddr"))
    count = max(len(hosts), len(addresses))
    if count == 0:
        return conninfo  # the worker's own default
    hosts = hosts or addresses
    addresses = addresses or [""] * count
    ports = _split_list(fields.get("port")) or [DEFAULT_PORT]
    if len(ports) == 1:
        ports *= count
    if not len(hosts) == len(addresses) == len(ports):
        raise psycopg.OperationalError("host, hostaddr and port have different numbers of entries")
    pinned: list[tuple[str, str, str]] = []
    problem: OSError | None = None
    for host, address, port in zip(hosts, addresses, ports, strict=True):
        if not address and (not host or host.startswith(("/", "@"))):
            pinned.append((host, "", port))
            continue
        try:
            found = await guard.find_database_addresses(address or host, _parse_port(port))
        except OSError as error:
            problem = error
            continue
        pinned += [(host, each, port) for each in found]
    if not pinned:
        raise psycopg.OperationalError(f"failed to resolve host {','.join(hosts)!r}: {problem}")
    fields["host"] = ",".join(host for host, _, _ in pinned)
    fields["hostaddr"] = ",".join(address for _, address, _ in pinned)
    fields["port"] = ",".join(port for _, _, port in pinned)
    return make_conninfo("", **{name: value for name, value in fields.items() if value})


def _split_list(value: object) -> list[str]:
    return str(value).split(",") if value else []


def _parse_port(text: str) -> int:
    """The port for the resolver, which needs a number. libpq refuses a port that is none."""
    return int(text) if text.isascii() and text.isdigit() else int(DEFAULT_PORT)

"""Makes the egress guard of a worker from where it runs."""

from functools import partial
from pathlib import Path

from noetl.runtime.running_servers import list_local_addresses
from noetl.settings import EgressSettings, HomeSettings, read_settings
from noetl.tools.egress.guard import EgressGuard
from noetl.tools.egress.rules import EgressRules


def make_local_guard(home: Path, *addresses: str) -> EgressGuard:
    """The guard of a worker in the process of a user, who reaches private addresses anyway.

    `addresses` are those of the server in the same process.
    """
    servers = (*addresses, *read_settings(HomeSettings).server_urls)
    rules = EgressRules(allows_private=True, servers=servers)
    return EgressGuard(rules, partial(list_local_addresses, home))


def make_pool_guard(home: Path, servers: list[str]) -> EgressGuard:
    """The guard of a worker that belongs to these servers."""
    rules = EgressRules(allow=read_settings(EgressSettings).allow, servers=tuple(servers))
    return EgressGuard(rules, partial(list_local_addresses, home))

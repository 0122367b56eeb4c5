"""Profiles say where Spark runs. A step names one, or `NOETL_SPARK_PROFILE`.

local                    the server of this machine, started when a step needs it
sc://host:port/;token=…  any Spark Connect server
cluster:spark://…        the server of this machine, with its executors on a standalone cluster
none                     no Spark; only in the setting

A playbook is the same for all profiles.
"""

import socket
from dataclasses import dataclass
from urllib.parse import urlsplit

from noetl.model.errors import InvalidInput, Unavailable

LOCAL, NONE = "local", "none"
CONNECT_PORT, MASTER_PORT = 15002, 7077
LOOPBACK = "127.0.0.1"
PROFILE_TIMEOUT_S = 5.0
_CLUSTER = "cluster:"


class SparkUnavailable(Unavailable):
    """No Spark server answers, and none could be started."""

    code = "SPARK_UNAVAILABLE"


@dataclass(frozen=True, slots=True)
class SparkProfile:
    """With `url`, the Spark server belongs to others. Without it, the server is ours, and `master`
    is the cluster of its executors."""

    url: str | None = None
    master: str | None = None

    def check_reachable(self) -> None:
        """SparkUnavailable if the server or master of others takes no connection. A Spark client
        would try for minutes."""
        if self.url is not None:
            _connect_to_any(f"the Spark server {hide_token(self.url)}", [self.url], CONNECT_PORT)
        elif self.master is not None:
            _connect_to_any(f"the Spark master {self.master}", self.master.split(","), MASTER_PORT)


def parse_profile(text: str) -> SparkProfile:
    """Parse the text of a profile. InvalidInput if it is not one."""
    text = text.strip()
    if text == LOCAL:
        return SparkProfile()
    if text.startswith("sc://"):
        return SparkProfile(url=text)
    master = text.removeprefix(_CLUSTER).strip()
    if text.startswith(_CLUSTER) and master.startswith("spark://"):
        return SparkProfile(master=master)
    if text == NONE:
        raise InvalidInput(
            "NOETL_SPARK_PROFILE is none: there is no Spark for steps", hint="local starts one here"
        )
    raise InvalidInput(
        f"{hide_token(text)!r} is not a Spark profile",
        hint="local, sc://host:port or cluster:spark://host:port (NOETL_SPARK_PROFILE, or `spec.profile` of a step)",
    )


def _connect_to_any(what: str, addresses: list[str], port: int) -> None:
    """Connect to any of the addresses."""
    why = ""
    for address in addresses:
        if "://" not in address:
            address = f"spark://{address}"
        parts = urlsplit(hide_token(address))
        try:
            target = (parts.hostname or "", parts.port or port)
            socket.create_connection(target, PROFILE_TIMEOUT_S).close()
            return
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or str(error)
    raise SparkUnavailable(
        f"{what} does not answer: {why}", hint="is it running? NOETL_SPARK_PROFILE names it"
    )


def find_local_address(profile: SparkProfile) -> str:
    """The address by which the server or the executors of a profile reach this machine.

    No packet is sent: the system only chooses a route. Of several masters the first one counts.
    """
    if profile.url is not None:
        parts = urlsplit(hide_token(profile.url))
        port = CONNECT_PORT
    elif profile.master is not None:
        parts = urlsplit(profile.master.partition(",")[0])
        port = MASTER_PORT
    else:
        return LOOPBACK
    try:
        found = socket.getaddrinfo(parts.hostname, parts.port or port, type=socket.SOCK_DGRAM)
        family, *_, address = found[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)
            host: str = probe.getsockname()[0]
            return host
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise SparkUnavailable(
            f"{hide_token(profile.url or profile.master or '')} cannot be reached: {why}",
            hint="NOETL_SPARK_PROFILE names it",
        ) from error


def hide_token(text: str) -> str:
    """The profile without its token, for messages."""
    return text.strip().partition(";")[0]

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
ANSWER_SEC = 5.0
_CLUSTER = "cluster:"


class SparkUnavailable(Unavailable):
    """No Spark server answers, and none could be started."""

    code = "SPARK_UNAVAILABLE"


@dataclass(frozen=True, slots=True)
class Profile:
    """With `url`, the Spark server belongs to others. Without it, the server is ours, and `master`
    is the cluster of its executors."""

    url: str | None = None
    master: str | None = None

    def reach(self) -> None:
        """SparkUnavailable if the server or master of others takes no connection. A Spark client
        would try for minutes."""
        if self.url is not None:
            _reach(f"the Spark server {shown(self.url)}", [self.url], CONNECT_PORT)
        elif self.master is not None:
            _reach(f"the Spark master {self.master}", self.master.split(","), MASTER_PORT)


def profile(text: str) -> Profile:
    """Parse the text of a profile. InvalidInput if it is not one."""
    text = text.strip()
    if text == LOCAL:
        return Profile()
    if text.startswith("sc://"):
        return Profile(url=text)
    master = text.removeprefix(_CLUSTER).strip()
    if text.startswith(_CLUSTER) and master.startswith("spark://"):
        return Profile(master=master)
    if text == NONE:
        raise InvalidInput(
            "NOETL_SPARK_PROFILE is none: there is no Spark for steps", hint="local starts one here"
        )
    raise InvalidInput(
        f"{shown(text)!r} is not a Spark profile",
        hint="local, sc://host:port or cluster:spark://host:port (NOETL_SPARK_PROFILE, or `spec.profile` of a step)",
    )


def _reach(what: str, addresses: list[str], port: int) -> None:
    """Connect to any of the addresses."""
    why = ""
    for address in addresses:
        if "://" not in address:
            address = f"spark://{address}"
        parts = urlsplit(shown(address))
        try:
            target = (parts.hostname or "", parts.port or port)
            socket.create_connection(target, ANSWER_SEC).close()
            return
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or str(error)
    raise SparkUnavailable(
        f"{what} does not answer: {why}", hint="is it running? NOETL_SPARK_PROFILE names it"
    )


def shown(text: str) -> str:
    """The profile without its token, for messages."""
    return text.strip().partition(";")[0]

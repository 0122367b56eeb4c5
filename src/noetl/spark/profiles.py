"""Where Spark is: a profile, named by a step or by `NOETL_SPARK_PROFILE`. A playbook never changes with it.

local                    the server of this machine, started when it is needed
sc://host:port/;token=…  any Spark Connect server
cluster:spark://…        the server of this machine, its executors on a standalone cluster

Of the setting alone: none. There is no Spark.
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
    """There is no Spark server, and none could be started."""

    code = "SPARK_UNAVAILABLE"


@dataclass(frozen=True, slots=True)
class Profile:
    """A `url` is served by others; without one the server is ours, `master` says where its executors are."""

    url: str | None = None
    master: str | None = None

    def reach(self) -> None:
        """What others serve takes connections; SparkUnavailable if it does not. Clients of Spark would try for minutes."""
        if self.url is not None:
            _reach(f"the Spark server {shown(self.url)}", [self.url], CONNECT_PORT)
        elif self.master is not None:
            _reach(f"the Spark master {self.master}", self.master.split(","), MASTER_PORT)


def profile(text: str) -> Profile:
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
    """Any of them."""
    why = ""
    for address in addresses:
        parts = urlsplit(shown(address if "://" in address else f"spark://{address}"))
        try:
            socket.create_connection((parts.hostname or "", parts.port or port), ANSWER_SEC).close()
            return
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or str(error)
    raise SparkUnavailable(
        f"{what} does not answer: {why}", hint="is it running? NOETL_SPARK_PROFILE names it"
    )


def shown(text: str) -> str:
    """Without its token."""
    return text.strip().partition(";")[0]

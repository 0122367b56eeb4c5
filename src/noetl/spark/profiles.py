"""Where Spark is: a profile, named by a step or by `NOETL_SPARK_PROFILE`. A playbook never changes with it.

local                    the server of this machine, started when it is needed
sc://host:port/;token=…  any Spark Connect server
cluster:spark://…        the server of this machine, its executors on a standalone cluster

Of the setting alone: none. There is no Spark.
"""

from dataclasses import dataclass

from noetl.model.errors import InvalidInput

LOCAL, NONE = "local", "none"
_CLUSTER = "cluster:"


@dataclass(frozen=True, slots=True)
class Profile:
    """A `url` is served by others; without one the server is ours, `master` says where its executors are."""

    url: str | None = None
    master: str | None = None


def profile(text: str) -> Profile:
    text = text.strip()
    if text == LOCAL:
        return Profile()
    if text.startswith("sc://"):
        return Profile(url=text)
    master = text.removeprefix(_CLUSTER).strip()
    if text.startswith(_CLUSTER) and master.startswith("spark://"):
        return Profile(master=master)
    raise InvalidInput(
        f"{shown(text)!r} is not a Spark profile",
        hint="local, sc://host:port or cluster:spark://host:port (NOETL_SPARK_PROFILE, or `spec.profile` of a step)",
    )


def shown(text: str) -> str:
    """Without its token."""
    return text.strip().partition(";")[0]

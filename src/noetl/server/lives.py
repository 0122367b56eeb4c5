"""Checks that the payloads of a result have not expired."""

from noetl.log.port import EventLog
from noetl.model.clock import iso
from noetl.model.errors import Expired
from noetl.model.ids import Micros, RefId
from noetl.model.reference import Lifetime, parse_uri


async def alive(log: EventLog, addresses: dict[RefId, str]) -> Lifetime | None:
    """The lifetime of these payloads of one result. Raises `Expired` if one of them is gone."""
    lives = await log.lives(list(addresses))
    for ref_id, life in lives.items():
        if life.expired_at is not None:
            raise _expired(addresses[ref_id], life.expired_at)
    for life in lives.values():
        return life.lifetime
    return None


def _expired(uri: str, at: Micros) -> Expired:
    where = parse_uri(uri)
    return Expired(
        f"the result of step {where.step} of execution {where.execution_id} expired at {iso(at)}",
        hint=f"noetl exec rerun {where.execution_id} makes it again; a longer output.ttl, output.scope: permanent or "
        "noetl result pin keeps the next one",
    )

"""Checks that the payloads of a result have not expired."""

from noetl.log.lifetimes.port import ResultLifetimes
from noetl.model.clock import format_iso
from noetl.model.errors import Expired
from noetl.model.ids import Micros, RefId
from noetl.model.reference import Lifetime, parse_uri


async def check_not_expired(
    lifetimes: ResultLifetimes, addresses: dict[RefId, str]
) -> Lifetime | None:
    """The lifetime of these payloads of one result. Raises `Expired` if one of them is gone."""
    lives = await lifetimes.read_lifetimes(list(addresses))
    for ref_id, life in lives.items():
        if life.expired_at is not None:
            raise _make_expired_error(addresses[ref_id], life.expired_at)
    for life in lives.values():
        return life.lifetime
    return None


def _make_expired_error(uri: str, at: Micros) -> Expired:
    where = parse_uri(uri)
    return Expired(
        f"the result of step {where.step} of execution {where.execution_id} expired at {format_iso(at)}",
        hint=f"noetl exec rerun {where.execution_id} makes it again; a longer output.ttl, output.scope: permanent or "
        "noetl result pin keeps the next one",
    )

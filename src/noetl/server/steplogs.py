"""Step logs at the server: what a worker may store as one. Their lines are opened for readers only (`services/logs.py`)."""

import logging
from hashlib import sha256

from noetl.log.port import BLOB_LIMIT, EventLog
from noetl.model.errors import BadReference
from noetl.model.messages import StoredRef
from noetl.model.reference import parse_uri

log = logging.getLogger(__name__)


async def keep(eventlog: EventLog, parts: tuple[StoredRef, ...]) -> None:
    """Durable when it returns. What is no part of a log would be none the next time either: it is passed over."""
    good = tuple(part for part in parts if _is_log(part))
    if len(good) < len(parts):
        log.warning("step logs passed over", extra={"parts": len(parts) - len(good)})
    if good:
        await eventlog.put_logs(good)


def _is_log(part: StoredRef) -> bool:
    payload, reference = part.payload or b"", part.reference
    try:
        named = parse_uri(reference.uri).kind == "log" and 0 < int(reference.ref_id) < 1 << 63
    except (BadReference, ValueError):
        return False
    return (
        named and 0 < len(payload) <= BLOB_LIMIT and sha256(payload).hexdigest() == reference.sha256
    )

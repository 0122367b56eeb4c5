"""Stores the step logs that workers send. Only `services/logs.py` opens them, for readers."""

import logging
from hashlib import sha256

from noetl.log.port import MAX_BLOB_BYTES, EventLog
from noetl.model.errors import BadReference
from noetl.model.messages import StoredRef
from noetl.model.reference import parse_uri

log = logging.getLogger(__name__)


async def store_log_parts(eventlog: EventLog, parts: tuple[StoredRef, ...]) -> None:
    """Store these parts; they are durable when it returns.

    Skips invalid parts: refusing them would only make the worker send them again.
    """
    valid = tuple(part for part in parts if _is_log(part))
    if len(valid) < len(parts):
        log.warning("step logs passed over", extra={"parts": len(parts) - len(valid)})
    if valid:
        await eventlog.put_logs(valid)


def _is_log(part: StoredRef) -> bool:
    payload = part.payload or b""
    reference = part.reference
    try:
        is_log_uri = parse_uri(reference.uri).kind == "log"
        has_valid_id = 0 < int(reference.ref_id) < 1 << 63
    except (BadReference, ValueError):
        return False
    if not (is_log_uri and has_valid_id):
        return False
    if not 0 < len(payload) <= MAX_BLOB_BYTES:
        return False
    return sha256(payload).hexdigest() == reference.sha256

"""Stores the step logs that workers send. Only `logs/service.py` opens them, for readers."""

import logging
from hashlib import sha256

from noetl.log.payloads.port import MAX_BLOB_BYTES
from noetl.log.step_logs.port import StepLogStore
from noetl.model.errors import BadReference
from noetl.model.ids import Tenant
from noetl.model.messages import StoredRef
from noetl.model.reference import parse_uri
from noetl.server.observer import CommitObserver

log = logging.getLogger(__name__)


class StepLogWriter:
    """Stores the parts of step logs that workers send."""

    def __init__(self, step_logs: StepLogStore, observer: CommitObserver) -> None:
        self._step_logs = step_logs
        self._observer = observer

    async def store_parts(self, tenant: Tenant, parts: tuple[StoredRef, ...]) -> None:
        """Store these parts; they are durable when it returns.

        Skips invalid parts: refusing them would only make the worker send them again.
        """
        valid = tuple(part for part in parts if _is_log(part))
        if len(valid) < len(parts):
            log.warning("step logs passed over", extra={"parts": len(parts) - len(valid)})
        if not valid:
            return
        await self._step_logs.put_parts(tenant, valid)
        executions = {parse_uri(part.reference.uri).execution_id for part in valid}
        self._observer.observe_step_logs(executions)


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

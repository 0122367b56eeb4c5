"""The outcome of an execution as one hash, for comparing two runs of the same work.

Ids, times, attempts and workers do not change the hash.
"""

from hashlib import blake2b
from typing import Any

import msgspec

from noetl.engine.state import Execution
from noetl.playbook.assignments import REFERENCE, is_reference, is_wrapped, linked

_SIZE = 1 << 62


def mark(outcome: int, *fact: Any) -> int:
    """Add a fact to the hash. The order of the facts of parallel branches does not matter."""
    text = "\x1f".join(map(str, fact)).encode()
    return (outcome + int.from_bytes(blake2b(text, digest_size=8).digest())) % _SIZE


def outcome_hash(state: Execution) -> str:
    ctx = {name: _comparable(value) for name, value in state.ctx.items()}
    code = ""
    if state.failure is not None and state.status == "failed":
        code = state.failure.code
    facts = msgspec.json.encode([state.status, code, ctx, state.outcome], order="deterministic")
    return blake2b(facts, digest_size=16).hexdigest()


def _comparable(value: Any) -> Any:
    """A value that is equal for equal data, also if the data is stored in different places."""
    if not isinstance(value, dict):
        return value
    if is_reference(value):
        return {REFERENCE: linked(value).sha256 or ""}
    if is_wrapped(value):
        return value
    return {name: _comparable(part) for name, part in value.items()}

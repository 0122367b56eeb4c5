"""The outcome of an execution as one hash, for comparing two runs of the same work.

Ids, times, attempts and workers do not change the hash.
"""

from hashlib import blake2b
from typing import Any

import msgspec

from noetl.engine.state import Execution
from noetl.playbook.assignments import LINK_KEY, is_reference, is_wrapped, read_link

_OUTCOME_MODULUS = 1 << 62


def add_outcome_fact(outcome: int, *fact: Any) -> int:
    """Add a fact to the hash. The order of the facts of parallel branches does not matter."""
    text = "\x1f".join(map(str, fact)).encode()
    return (outcome + int.from_bytes(blake2b(text, digest_size=8).digest())) % _OUTCOME_MODULUS


def hash_outcome(state: Execution) -> str:
    ctx = {name: _make_comparable(value) for name, value in state.ctx.items()}
    code = ""
    if state.failure is not None and state.status == "failed":
        code = state.failure.code
    facts = msgspec.json.encode([state.status, code, ctx, state.outcome], order="deterministic")
    return blake2b(facts, digest_size=16).hexdigest()


def _make_comparable(value: Any) -> Any:
    """A value that is equal for equal data, also if the data is stored in different places."""
    if not isinstance(value, dict):
        return value
    if is_reference(value):
        return {LINK_KEY: read_link(value).sha256 or ""}
    if is_wrapped(value):
        return value
    return {name: _make_comparable(part) for name, part in value.items()}

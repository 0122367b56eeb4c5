"""Ids. Executions and references have 63-bit snowflakes. They are text everywhere, because JSON
readers round large numbers. Commands, activations and timers have hashes of their cause, so
deciding twice gives the same ids."""

from functools import lru_cache
from hashlib import blake2b
from typing import NewType

ExecutionId = NewType("ExecutionId", str)
RefId = NewType("RefId", str)
CommandId = NewType("CommandId", str)
ActivationId = NewType("ActivationId", str)
TimerId = NewType("TimerId", str)
Micros = int  # microseconds since 1970, UTC
Tenant = NewType("Tenant", int)

DEFAULT_TENANT = Tenant(1)
BY_EXECUTION = "execution:"  # prefix of `by` if an execution, named by its id, started another
SNOWFLAKE_EPOCH_MS = 1_735_689_600_000  # 2025-01-01
_ID_BITS, _NODE_BITS, _COUNT_BITS = 63, 10, 12


def derive_id(*cause: str | int) -> str:
    """Hash the cause to 128 bits, as hex. Equal causes give equal ids."""
    return blake2b("\x1f".join(map(str, cause)).encode(), digest_size=16).hexdigest()


def activation_id(execution: str, step: str, cause: str) -> ActivationId:
    return ActivationId(derive_id("activation", execution, step, cause))


def command_id(activation: str, purpose: str, number: int = 0) -> CommandId:
    return CommandId(derive_id("command", activation, purpose, number))


def call_id(
    command: str,
    task: str,
    run: int,
    tries: int = 0,
) -> str:
    """The id of one run of one task of a command: the start key of a child, or the manifest of the
    pages of a call. A call after `tries` failed tries starts another child."""
    if tries:
        return derive_id("call", command, task, run, f"try {tries}")
    return derive_id("call", command, task, run)


def gathered_id(activation: str) -> str:
    """The manifest of the values that items of a loop gave to `append`, `merge` and `last`."""
    return derive_id("gathered", activation)


def timer_id(owner: str, purpose: str) -> TimerId:
    return TimerId(derive_id("timer", owner, purpose))


@lru_cache(maxsize=8192)  # called several times per report
def shard_of(execution: str, count: int) -> int:
    """The shard of an execution: a fixed mix of the id's bits, modulo the number of shards."""
    x = int(execution) & 0xFFFF_FFFF_FFFF_FFFF
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFF_FFFF_FFFF_FFFF
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & 0xFFFF_FFFF_FFFF_FFFF
    return (x ^ (x >> 31)) % count


def get_creation_time(execution: str) -> Micros:
    """When the id of the execution was drawn."""
    return ((int(execution) >> (_NODE_BITS + _COUNT_BITS)) + SNOWFLAKE_EPOCH_MS) * 1_000


def get_first_id(at: Micros) -> int:
    """The smallest id that can be drawn at this moment or later."""
    ms = at // 1_000 - SNOWFLAKE_EPOCH_MS
    last_ms = (1 << _ID_BITS - _NODE_BITS - _COUNT_BITS) - 1
    return min(max(0, ms), last_ms) << (_NODE_BITS + _COUNT_BITS)


class Snowflakes:
    """Draws the ids of one node: time, node number, counter. Ids never decrease, even if the clock
    goes back."""

    def __init__(self, node: int) -> None:
        if not 0 <= node < 1 << _NODE_BITS:
            raise ValueError(f"node number {node} does not fit {_NODE_BITS} bits")
        self._node = node
        self._last_ms = 0
        self._count = 0

    def draw_id(self, now: Micros) -> str:
        ms = max(now // 1000 - SNOWFLAKE_EPOCH_MS, self._last_ms)
        self._count = self._count + 1 if ms == self._last_ms else 0
        if self._count >> _COUNT_BITS:
            ms, self._count = ms + 1, 0
        self._last_ms = ms
        return str((ms << (_NODE_BITS + _COUNT_BITS)) | (self._node << _COUNT_BITS) | self._count)

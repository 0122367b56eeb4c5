"""Identities. Executions and references are 63-bit snowflakes, written as text everywhere so that no JSON reader rounds them;
commands, activations and timers are hashes of their cause, so that deciding twice gives the same ones."""

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
BY_EXECUTION = "execution:"  # of who started one: this, and an id
SNOWFLAKE_EPOCH_MS = 1_735_689_600_000  # 2025-01-01
_ID_BITS, _NODE_BITS, _COUNT_BITS = 63, 10, 12


def derive(*cause: str | int) -> str:
    """128 bits of the cause, as hex: equal causes, equal ids."""
    return blake2b("\x1f".join(map(str, cause)).encode(), digest_size=16).hexdigest()


def activation_id(execution: str, step: str, cause: str) -> ActivationId:
    return ActivationId(derive("activation", execution, step, cause))


def command_id(activation: str, purpose: str, number: int = 0) -> CommandId:
    return CommandId(derive("command", activation, purpose, number))


def call_id(command: str, task: str, run: int, tries: int = 0) -> str:
    """One run of one task of a command: start key of a child, manifest of a call's pages. A child that is called again after
    `tries` failed is another child."""
    return derive("call", command, task, run, *((f"try {tries}",) if tries else ()))


def gathered_id(activation: str) -> str:
    """The manifest of what the items of a loop gave to `append`, `merge` and `last`."""
    return derive("gathered", activation)


def timer_id(owner: str, purpose: str) -> TimerId:
    return TimerId(derive("timer", owner, purpose))


@lru_cache(maxsize=8192)  # asked several times for every report
def shard_of(execution: str, count: int) -> int:
    """The one function from an execution to its shard: a fixed mix of the id's bits, then modulo."""
    x = int(execution) & 0xFFFF_FFFF_FFFF_FFFF
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFF_FFFF_FFFF_FFFF
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & 0xFFFF_FFFF_FFFF_FFFF
    return (x ^ (x >> 31)) % count


def born(execution: str) -> Micros:
    """When the id was drawn."""
    return ((int(execution) >> (_NODE_BITS + _COUNT_BITS)) + SNOWFLAKE_EPOCH_MS) * 1_000


def first_id(at: Micros) -> int:
    """No id that was drawn at this moment or later is smaller."""
    ms = at // 1_000 - SNOWFLAKE_EPOCH_MS
    longest = (1 << _ID_BITS - _NODE_BITS - _COUNT_BITS) - 1
    return min(max(0, ms), longest) << (_NODE_BITS + _COUNT_BITS)


class Snowflakes:
    """Ids of one node: time, node number, counter. Never goes back, even when the clock does."""

    def __init__(self, node: int) -> None:
        if not 0 <= node < 1 << _NODE_BITS:
            raise ValueError(f"node number {node} does not fit {_NODE_BITS} bits")
        self._node = node
        self._last_ms = 0
        self._count = 0

    def next(self, now: Micros) -> str:
        ms = max(now // 1000 - SNOWFLAKE_EPOCH_MS, self._last_ms)
        self._count = self._count + 1 if ms == self._last_ms else 0
        if self._count >> _COUNT_BITS:
            ms, self._count = ms + 1, 0
        self._last_ms = ms
        return str((ms << (_NODE_BITS + _COUNT_BITS)) | (self._node << _COUNT_BITS) | self._count)

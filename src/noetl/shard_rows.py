"""The shard rows that the memory twins of the log and of the leases share."""

from dataclasses import dataclass


@dataclass(slots=True)
class ShardRow:
    shard: int
    epoch: int = 0  # the fence: it grows with every takeover
    last_seq: int = 0
    owner: int | None = None


def make_shard_rows(count: int) -> list[ShardRow]:
    return [ShardRow(shard) for shard in range(count)]

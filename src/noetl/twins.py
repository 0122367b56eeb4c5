"""What the memory twins of the log and of the leases share: the shard rows, fence and sequence in one place."""

from dataclasses import dataclass


@dataclass(slots=True)
class ShardRow:
    shard: int
    epoch: int = 0  # grows with every takeover: the fence
    last_seq: int = 0
    owner: int | None = None


def shard_rows(count: int) -> list[ShardRow]:
    return [ShardRow(shard) for shard in range(count)]

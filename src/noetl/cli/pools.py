"""Pools of workers that queued commands need and no worker serves."""

from noetl.client.rows import Row, RowClient


async def find_unserved_pools(client: RowClient, queued: list[Row]) -> list[str]:
    """The pools of these commands without a worker, sorted by name."""
    served: set[str] = set()
    for worker in await client.list_workers():
        served.update(worker["pools"])
    return sorted({row["pool"] for row in queued} - served)


def make_start_command(pools: list[str]) -> str:
    """The command that starts a worker for these pools."""
    options = " ".join(f"--pool {pool}" for pool in pools)
    return f"noetl worker start {options}"

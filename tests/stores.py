"""Result stores as tests make them."""

from pathlib import Path

from noetl.results.cached import CachedTier
from noetl.results.files import FileTier
from noetl.results.large import LargeStore
from noetl.results.pool import FilePool, WriteAllowance
from noetl.results.port import Tier
from noetl.results.staging import Staging


def in_files(root: Path) -> LargeStore:
    files = FileTier(root)
    return LargeStore(files, files.staging)


def cached(tier: Tier, folder: Path, *, limit: int = 1 << 30, rate: float = 1 << 40) -> CachedTier:
    allowance = WriteAllowance(rate, lambda: 0.0)
    return CachedTier(
        tier,
        FilePool(folder / "meta", limit, allowance),
        FilePool(folder / "data", limit, allowance),
    )


def in_tier(tier: Tier, folder: Path) -> LargeStore:
    return LargeStore(tier, Staging(folder / "staging"))

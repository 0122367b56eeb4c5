"""Result stores as tests make them."""

from pathlib import Path

from noetl.results.port import Tier
from noetl.results.staging import Staging
from noetl.results.tiers.cached import CachedTier
from noetl.results.tiers.file_pool import FilePool, WriteAllowance
from noetl.results.tiers.files import FileTier
from noetl.results.tiers.large import LargeStore


def in_files(root: Path) -> LargeStore:
    files = FileTier(root)
    return LargeStore(files, files.staging)


def make_cached_tier(
    tier: Tier, folder: Path, *, limit: int = 1 << 30, rate: float = 1 << 40
) -> CachedTier:
    allowance = WriteAllowance(rate, lambda: 0.0)
    return CachedTier(
        tier,
        FilePool(folder / "meta", limit, allowance),
        FilePool(folder / "data", limit, allowance),
    )


def in_tier(tier: Tier, folder: Path) -> LargeStore:
    return LargeStore(tier, Staging(folder / "staging"))

"""Result stores as tests make them."""

from pathlib import Path

from noetl.results.cached import Cached
from noetl.results.files import FileStore
from noetl.results.large import Large
from noetl.results.pool import Allowance, FilePool
from noetl.results.port import Tier
from noetl.results.staging import Staging


def in_files(root: Path) -> Large:
    files = FileStore(root)
    return Large(files, files.staging)


def cached(tier: Tier, folder: Path, *, limit: int = 1 << 30, rate: float = 1 << 40) -> Cached:
    allowance = Allowance(rate, lambda: 0.0)
    return Cached(
        tier,
        FilePool(folder / "meta", limit, allowance),
        FilePool(folder / "data", limit, allowance),
    )


def in_tier(tier: Tier, folder: Path) -> Large:
    return Large(tier, Staging(folder / "staging"))

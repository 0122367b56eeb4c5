"""Result stores as tests make them."""

from pathlib import Path

from noetl.results.files import Files
from noetl.results.large import Large


def in_files(root: Path) -> Large:
    files = Files(root)
    return Large(files, files.staging)

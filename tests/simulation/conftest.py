"""`tests.simulation` is importable from every directory that pytest starts in; `long` marks the hunts that take minutes."""

import sys
from pathlib import Path

import pytest

ROOT = str(Path(__file__).parents[2])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "long: takes minutes; run with `pytest -m long`")

"""What every test shares: it does not sleep; and the profiles of hypothesis.

`HYPOTHESIS_PROFILE=search` looks for new examples instead of the same ones.
"""

import os

import pytest
from hypothesis import HealthCheck, settings

from tests import waiting

settings.register_profile(
    "suite", deadline=None, derandomize=True, max_examples=100, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("search", parent=settings.get_profile("suite"), derandomize=False, max_examples=2_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))


@pytest.fixture(autouse=True)
def _awake(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting.stay_awake(monkeypatch)

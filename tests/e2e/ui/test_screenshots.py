"""The pictures of five examples can be taken, and nothing goes wrong on a page meanwhile."""

from pathlib import Path

import pytest

from tests.e2e.ui.conftest import PICTURES
from tests.e2e.ui.screenshots import THEMES, WIDTHS, take_all_pictures


@pytest.mark.long
def test_pictures_of_five_examples(built_page: Path) -> None:
    taken = take_all_pictures(PICTURES)
    assert len(taken) % (len(THEMES) * len(WIDTHS)) == 0
    assert all(file.stat().st_size > 0 for file in taken)

"""The names and words of tests and benchmarks do not get worse. All of their files are read, which takes seconds: too long for a
unit test."""

import pytest

from tests.stack import ROOT
from tests.style.figures import AIMS, measure


@pytest.mark.parametrize("folder", ["tests", "bench"])
def test_names_and_words_of_tests_and_benchmarks_do_not_get_worse(folder: str) -> None:
    figures = measure(ROOT / folder)
    assert figures.ambiguous_classes <= AIMS.ambiguous_classes
    assert figures.participle_functions <= AIMS.participle_functions
    assert figures.riddles_per_1000_words <= AIMS.riddles_per_1000_words

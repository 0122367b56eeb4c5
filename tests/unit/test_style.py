"""The names of the source do not get worse: `make style NAMES=1` lists those that count against it."""

from dataclasses import fields
from functools import cache
from pathlib import Path

import noetl
from tests.style.__main__ import DESCRIPTIONS
from tests.style.figures import AIMS, Figures, measure
from tests.style.words import is_participle

ONE = '''"""Whoever reads this."""


class Part:
    pass


def told() -> int:
    import os

    return 1 if os else 2
'''
TWO = """
class Part:
    pass


def read_part() -> None:
    parts.popitem()
    delay = min(2 * delay, 5)
    size = min(2 * size, 5)
"""


@cache
def measure_package() -> Figures:
    return measure(Path(noetl.__file__).parent)


def test_names_of_classes_and_functions_do_not_get_worse() -> None:
    figures = measure_package()
    assert figures.ambiguous_classes <= AIMS.ambiguous_classes
    assert figures.participle_functions <= AIMS.participle_functions
    assert figures.one_word_functions <= AIMS.one_word_functions


def test_tests_are_sentences_and_no_functions_to_count(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(ONE.replace("def told", "def test_told") + TWO)
    assert measure(tmp_path).participle_functions == 0


def test_caches_and_backoffs_are_written_once() -> None:
    figures = measure_package()
    assert figures.lru_caches <= AIMS.lru_caches
    assert figures.backoffs <= AIMS.backoffs


def test_imports_stay_at_the_top_of_modules() -> None:
    assert measure_package().local_imports <= AIMS.local_imports


def test_lines_stay_easy_to_read() -> None:
    figures = measure_package()
    assert figures.tokens_per_line <= AIMS.tokens_per_line
    assert figures.conditionals_per_1000_lines <= AIMS.conditionals_per_1000_lines
    assert figures.riddles_per_1000_words <= AIMS.riddles_per_1000_words


def test_figures_count_names_lines_and_words(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(ONE)
    (tmp_path / "two.py").write_text(TWO)
    figures = measure(tmp_path)
    assert figures.ambiguous_classes == 1
    assert figures.participle_functions == 50
    assert figures.one_word_functions == 50
    assert figures.local_imports == 1
    assert figures.conditionals_per_1000_lines == 1_000 / 11
    assert figures.riddles_per_1000_words == 1_000 / 3
    assert (figures.lru_caches, figures.backoffs) == (1, 1)


def test_imperatives_that_look_like_participles_are_no_participles() -> None:
    assert is_participle("judged")
    assert is_participle("held")
    assert not is_participle("read")
    assert not is_participle("feed")
    assert not is_participle("open")


def test_every_figure_is_printed_with_what_it_counts() -> None:
    assert list(DESCRIPTIONS) == [figure.name for figure in fields(Figures)]

"""`make style`: the figures of the source beside their limits. `--names` lists what to rename first."""

import argparse
import os
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from tests.style.figures import AIMS, ambiguous_classes, count, measure
from tests.style.words import is_participle

SOURCE = Path(__file__).parents[2] / "src" / "noetl"
# What each figure counts, and its unit.
DESCRIPTIONS = {
    "ambiguous_classes": ("names of classes that several modules define", "names"),
    "participle_functions": ("functions named by a participle alone", "% of functions"),
    "one_word_functions": ("functions named by one word", "% of functions"),
    "tokens_per_line": ("tokens in a line of code", "tokens"),
    "conditionals_per_1000_lines": ("conditional expressions", "in 1000 lines of code"),
    "riddles_per_1000_words": ("whoever, whatever, whose", "in 1000 words of comments"),
    "local_imports": ("imports inside functions", "imports"),
    "lru_caches": ("modules that drop old cache entries themselves", "modules"),
    "backoffs": ("modules that let a delay grow themselves", "modules"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", type=Path, default=SOURCE, metavar="FOLDER")
    parser.add_argument(
        "--names", action="store_true", help="the names behind the first two figures"
    )
    options = parser.parse_args()
    limits = asdict(AIMS)
    print(f"Python files below {os.path.relpath(options.source)}:")
    for name, value in asdict(measure(options.source)).items():
        description, unit = DESCRIPTIONS[name]
        print(f"{description:48} {value:6.1f}   at most {limits[name]:g} {unit}")
    if options.names:
        print_names(options.source)


def print_names(folder: Path) -> None:
    counts = count(folder)
    for name, modules in sorted(ambiguous_classes(counts).items()):
        print(f"class {name}: {', '.join(sorted(modules))}")
    for name, times in Counter(filter(is_participle, counts.functions)).most_common():
        print(f"def {name}: {times}")


if __name__ == "__main__":
    main()

"""`make style`: the figures of the source beside their aims. `--names` lists what to rename first."""

import argparse
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from tests.style.figures import AIMS, ambiguous_classes, count, measure
from tests.style.words import is_participle

SOURCE = Path(__file__).parents[2] / "src" / "noetl"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", type=Path, default=SOURCE, metavar="FOLDER")
    parser.add_argument(
        "--names", action="store_true", help="the names behind the first two figures"
    )
    options = parser.parse_args()
    aims = asdict(AIMS)
    for name, value in asdict(measure(options.source)).items():
        print(f"{name.replace('_', ' '):32} {value:8.1f}   aim {aims[name]:g}")
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

"""`python -m tests.simulation`: run seeds, repeat one, hunt mutants."""

import argparse
import json
import sys
import time
from pathlib import Path

from tests.simulation import mutants, runner
from tests.simulation.world import MODES, History

RECORD = Path(__file__).with_name("mutants.json")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many")
    parser.add_argument("--from", dest="first", type=int, default=1, help="the first seed")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, help="this one only, with its story")
    parser.add_argument("--faults", help="exactly these kinds, comma separated, or `none`")
    parser.add_argument("--only", help="these executions of the seed only, by number")
    parser.add_argument("--mode", choices=MODES, default="both")
    parser.add_argument("--mutant", choices=sorted(mutants.MUTANTS), help="with this planted bug")
    parser.add_argument(
        "--hunt", action="store_true", help="find every mutant and write mutants.json"
    )
    parser.add_argument("--no-shrink", action="store_true")
    parser.add_argument("--quiet", action="store_true", help="no story for --seed")
    asked = parser.parse_args()
    if not runner.fixed_hashes():
        return runner.rerun_with_fixed_hashes()
    faults = None if asked.faults is None else frozenset(asked.faults.split(",")) - {"none"}
    only = None if asked.only is None else frozenset(map(int, asked.only.split(",")))
    if asked.hunt:
        return hunt(asked)
    if asked.seed is not None:
        return one(History(asked.seed, asked.mode, faults, only, asked.mutant), asked)
    histories = [
        History(seed, asked.mode, faults, only, asked.mutant)
        for seed in range(asked.first, asked.first + asked.seeds)
    ]
    tally = runner.sweep(histories, asked.jobs, stop_at=1 if asked.mutant else None)
    print(runner.report(tally))
    for rule, count in tally.rules.most_common():
        print(f"  {count} x {rule}")
    for failure in tally.failures[:20]:
        print(
            f"seed {failure.history.seed}: {failure.violation}\n  repeat: {runner.command(failure.history)}"
        )
    for seed in tally.differing:
        print(f"seed {seed}: not deterministic, its traces differ between processes")
    if tally.failures and not asked.no_shrink:
        smallest, result = runner.shrink(tally.failures[0].history)
        print(f"shrunk: {result.violation}\n  repeat: {runner.command(smallest)}")
    return 1 if tally.failures or tally.differing else 0


def one(history: History, asked: argparse.Namespace) -> int:
    result = runner.attempt(history)
    if not asked.quiet:
        print("\n".join(result.story))
    print(f"trace {result.trace}  events {result.events}  virtual {result.virtual:.1f} s")
    print(f"faults: {','.join(sorted(result.kinds)) or 'none'}")
    print("violation: " + (result.violation or "none"))
    if result.violation is not None and not asked.no_shrink:
        smallest, shrunk = runner.shrink(history)
        print(f"shrunk: {shrunk.violation}\n  repeat: {runner.command(smallest)}")
    return 1 if result.violation is not None else 0


def hunt(asked: argparse.Namespace) -> int:
    """For each mutant the first three seeds that find it, among `--seeds` from `--from`: later code may hide one of them."""
    found = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    seeds = range(asked.first, asked.first + asked.seeds)
    names = [asked.mutant] if asked.mutant else sorted(mutants.MUTANTS)
    escaped, began = [], time.perf_counter()
    narrowed = frozenset(asked.faults.split(",")) if asked.faults else None
    faults = None if narrowed is None else dict.fromkeys(names, narrowed)
    for name, results in runner.hunt(
        dict.fromkeys(names, seeds), asked.mode, asked.jobs, wanted=3, faults=faults
    ):
        if not results:
            escaped.append(name)
            print(f"{name}: NOT FOUND in {asked.seeds} seeds", flush=True)
            continue
        numbers = [result.history.seed for result in results]
        found[name] = {"seeds": numbers, "rules": sorted({result.rule for result in results})}
        if narrowed is not None:
            found[name]["faults"] = sorted(narrowed)
        print(
            f"{name}: seeds {numbers} ({time.perf_counter() - began:.0f} s) {results[0].violation}",
            flush=True,
        )
        RECORD.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    return 1 if escaped else 0


if __name__ == "__main__":
    sys.exit(main())

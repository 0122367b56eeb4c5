"""Many seeds, on several processes: what failed, the command that repeats it, and the smallest one that still fails.

Every tenth seed runs twice, in different processes, and its traces must be equal: a simulator that is not deterministic proves
nothing. Hash randomisation is switched off in the children for the same reason.
"""

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path

from noetl import faults as points
from tests.simulation import mutants
from tests.simulation.faulty import swarm
from tests.simulation.workloads import cases
from tests.simulation.world import History, Result, prepare, run

ROOT = Path(__file__).parents[2]
GUARD_EVERY = 10


def fixed_hashes() -> bool:
    return os.environ.get("PYTHONHASHSEED") == "0"


def rerun_with_fixed_hashes() -> int:
    """The same command once more, with hashes that are the same every time."""
    return subprocess.call(
        [sys.executable, "-m", "tests.simulation", *sys.argv[1:]],
        env=os.environ | {"PYTHONHASHSEED": "0"},
        cwd=ROOT,
    )


def attempt(history: History) -> Result:
    if history.mutant is not None:
        prepare(history)
    with mutants.plant_mutant(history.mutant):
        return run(history)


def chunk_of(histories: list[History]) -> list[Result]:
    return [attempt(history) for history in histories]


@dataclass
class Tally:
    seeds: int = 0
    seconds: float = 0.0
    events: int = 0
    virtual: float = 0.0
    reached: Counter[str] = field(default_factory=Counter)
    fired: Counter[str] = field(default_factory=Counter)
    endings: Counter[str] = field(default_factory=Counter)
    rules: Counter[str] = field(default_factory=Counter)
    failures: list[Result] = field(default_factory=list)
    differing: list[int] = field(default_factory=list)
    guarded: int = 0

    def add(self, result: Result) -> None:
        self.seeds += 1
        self.events += result.events
        self.virtual += result.virtual
        self.reached.update(result.reached)
        self.fired.update(result.fired)
        self.endings.update(result.endings)
        if result.violation is not None:
            self.failures.append(result)
            self.rules[result.rule or ""] += 1


def sweep(
    histories: list[History], jobs: int, *, guard: bool = True, stop_at: int | None = None
) -> Tally:
    """Run them all; stop early after `stop_at` failures."""
    tally, began = Tally(), time.perf_counter()
    again = [history for history in histories if guard and history.seed % GUARD_EVERY == 0]
    first = {history.seed: "" for history in again}
    for result in results(histories, jobs):
        tally.add(result)
        if result.history.seed in first:
            first[result.history.seed] = result.trace
        if stop_at is not None and len(tally.failures) >= stop_at:
            break
    else:
        for result in results(again, 1, fresh=True):
            tally.guarded += 1
            if first[result.history.seed] != result.trace:
                tally.differing.append(result.history.seed)
    tally.seconds = time.perf_counter() - began
    return tally


def results(histories: list[History], jobs: int, *, fresh: bool = False) -> Iterator[Result]:
    """In order of the histories. `fresh`: in a process that has run nothing before."""
    if jobs <= 1 and not fresh:
        yield from (attempt(history) for history in histories)
        return
    size = max(1, min(25, len(histories) // (jobs * 4) or 1))
    chunks = [histories[at : at + size] for at in range(0, len(histories), size)]
    with spawning(jobs) as pool:
        pending = [pool.submit(chunk_of, chunk) for chunk in chunks]
        try:
            for future in pending:
                yield from future.result()
        finally:
            for future in pending:
                future.cancel()


def find(
    name: str,
    seeds: Iterable[int],
    mode: str,
    wanted: int = 1,
    faults: frozenset[str] | None = None,
) -> list[Result]:
    """The first seeds that notice a mutant, with these kinds of faults only if they are given."""
    found: list[Result] = []
    for seed in seeds:
        result = attempt(History(seed, mode, faults, None, name))
        if result.violation is not None:
            found.append(result)
            if len(found) == wanted:
                break
    return found


def hunt(
    seeds: Mapping[str, Iterable[int]],
    mode: str,
    jobs: int,
    wanted: int = 1,
    faults: Mapping[str, frozenset[str]] | None = None,
) -> Iterator[tuple[str, list[Result]]]:
    """Mutants by name, each with the seeds to try; as many at once as there are jobs. `faults` narrows them for a mutant
    that a rare mixture hides."""
    narrowed = faults or {}
    with spawning(jobs) as pool:
        pending = {
            pool.submit(find, name, tried, mode, wanted, narrowed.get(name)): name
            for name, tried in seeds.items()
        }
        for future in as_completed(pending):
            yield pending[future], future.result()


@contextmanager
def spawning(jobs: int) -> Iterator[ProcessPoolExecutor]:
    previous = os.environ.get("PYTHONHASHSEED")
    os.environ["PYTHONHASHSEED"] = "0"
    try:
        with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
            yield pool
    finally:
        if previous is None:
            del os.environ["PYTHONHASHSEED"]
        else:
            os.environ["PYTHONHASHSEED"] = previous


def command(history: History) -> str:
    parts = ["uv run --no-sync python -m tests.simulation", f"--seed {history.seed}"]
    if history.faults is not None:
        parts.append(f"--faults {','.join(sorted(history.faults)) or 'none'}")
    if history.only is not None:
        parts.append(f"--only {','.join(map(str, sorted(history.only)))}")
    if history.mode != "both":
        parts.append(f"--mode {history.mode}")
    if history.mutant is not None:
        parts.append(f"--mutant {history.mutant}")
    return " ".join(parts)


def shrink(history: History, *, budget: int = 120) -> tuple[History, Result]:
    """Fewer executions, fewer kinds of fault, as long as it still fails. What fails may change: any violation will do."""
    best = replace(
        history,
        faults=swarm(history.seed) if history.faults is None else history.faults,
        only=frozenset(range(len(cases(history.seed)))) if history.only is None else history.only,
    )
    result = attempt(best)
    if result.violation is None:
        return history, attempt(history)
    changed = True
    while changed and budget > 0:
        changed = False
        for smaller in _smaller(best):
            budget -= 1
            if budget < 0:
                break
            tried = attempt(smaller)
            if tried.violation is not None:
                best, result, changed = smaller, tried, True
                break
    return best, result


def _smaller(history: History) -> Iterable[History]:
    only, faults = history.only or frozenset(), history.faults or frozenset()
    if len(only) > 1:
        for number in sorted(only):
            yield replace(history, only=only - {number})
    kinds = sorted(faults)
    if len(kinds) > 3:  # halves first
        half = len(kinds) // 2
        yield replace(history, faults=frozenset(kinds[:half]))
        yield replace(history, faults=frozenset(kinds[half:]))
    for kind in kinds:
        yield replace(history, faults=faults - {kind})


def report(tally: Tally) -> str:
    rate = tally.seeds / tally.seconds if tally.seconds else 0.0
    lines = [
        f"{tally.seeds} seeds in {tally.seconds:.1f} s ({rate:.1f} seeds/s), {tally.events} events, "
        f"{tally.virtual / 3600:.1f} simulated hours",
        f"violations: {len(tally.failures)}   traces compared: {tally.guarded}, different: {len(tally.differing)}",
        "executions: "
        + ", ".join(f"{status} {count}" for status, count in sorted(tally.endings.items())),
        "crash points (reached, killed, paused): "
        + ", ".join(
            f"{name} {tally.reached[name]}/{tally.fired[f'point.{name}']}/{tally.fired[f'pause.{name}']}"
            for name in points.FAULT_POINTS
        ),
        "faults: "
        + ", ".join(
            f"{kind} {count}"
            for kind, count in sorted(tally.fired.items())
            if kind.partition(".")[2] not in points.FAULT_POINTS
        ),
    ]
    missing = [name for name in points.FAULT_POINTS if not tally.reached[name]]
    if missing:
        lines.append(f"crash points never reached: {', '.join(missing)}")
    return "\n".join(lines)

"""A short run of the simulator, and the proof that it sees: every planted bug is found again.

The long hunts are behind `-m long`; `python -m tests.simulation` runs as many seeds as wanted.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from noetl.faults import FAULT_POINTS
from tests.simulation import mutants, runner
from tests.simulation.faulty import KINDS, swarm
from tests.simulation.world import History, Result

RECORD: dict[str, dict[str, list[Any]]] = json.loads(
    Path(__file__).with_name("mutants.json").read_text()
)
SEEDS = range(1, 41)
WINDOW = range(
    1, 41
)  # where a mutant is looked for when the code around it has moved its recorded seeds


@pytest.fixture(scope="module")
def short_results() -> list[Result]:
    """In another process, where hashes are the same every time."""
    return list(runner.results([History(seed) for seed in SEEDS], 1, fresh=True))


def test_no_seed_breaks_an_invariant(short_results: list[Result]) -> None:
    broken = [
        f"{runner.command(result.history)}: {result.violation}"
        for result in short_results
        if result.violation is not None
    ]
    assert broken == []


def test_every_crash_point_is_reached(short_results: list[Result]) -> None:
    reached = {name for result in short_results for name in result.reached}
    assert reached == set(FAULT_POINTS)


def test_a_seed_gives_the_same_history_in_another_process(short_results: list[Result]) -> None:
    chosen = [result for result in short_results if result.history.seed % 10 == 0]
    again = list(runner.results([result.history for result in reversed(chosen)], 1, fresh=True))
    assert [result.trace for result in reversed(again)] == [result.trace for result in chosen]


def test_every_kind_of_fault_is_chosen_by_some_seed() -> None:
    assert {kind for seed in range(400) for kind in swarm(seed)} == set(KINDS)


def test_every_mutant_has_a_recorded_seed() -> None:
    assert set(RECORD) == set(mutants.MUTANTS)
    assert len(RECORD) >= 25


@pytest.fixture(scope="module")
def mutant_results() -> dict[str, list[Result]]:
    """Every mutant on its recorded seeds, in one other process."""
    seeds = {name: [*entry["seeds"], *WINDOW] for name, entry in RECORD.items()}
    faults = {
        name: frozenset(entry["faults"]) for name, entry in RECORD.items() if "faults" in entry
    }
    return dict(runner.hunt(seeds, "both", 1, faults=faults))


@pytest.mark.parametrize("name", sorted(mutants.MUTANTS))
def test_a_planted_bug_is_found(mutant_results: dict[str, list[Result]], name: str) -> None:
    assert mutant_results[name], (
        f"not found by seeds {RECORD[name]['seeds']} any more: python -m tests.simulation --hunt --seeds 10000"
    )


@pytest.mark.parametrize(
    ("new", "slip"),
    [
        (lambda fixed: None, "TypeError"),  # it does not take what it is called with
        (lambda fixed, state, message, at, **more: mutants.m.NoSuchName, "AttributeError"),
    ],
)
def test_a_mutant_with_a_slip_in_its_own_code_counts_as_broken_not_as_found(
    monkeypatch: pytest.MonkeyPatch, new: Any, slip: str
) -> None:
    change = (mutants.dispatch, "interpret", new)
    monkeypatch.setitem(
        mutants.MUTANTS, "wrong", lambda slips: mutants.patch_changes(slips, change)
    )
    with pytest.raises(mutants.MutantBroken, match=f"wrong: {slip}"):
        runner.attempt(History(2, mutant="wrong"))


def test_a_failing_seed_shrinks_to_a_command_that_repeats_it() -> None:
    history = History(2, mutant="put_after_report")
    smallest, result = runner.shrink(history)
    assert result.violation is not None
    assert len(smallest.faults or ()) <= len(swarm(2))
    assert runner.command(smallest).startswith(
        "uv run --no-sync python -m tests.simulation --seed 2 --faults "
    )
    assert runner.attempt(smallest).violation is not None


@pytest.mark.long
def test_ten_thousand_seeds() -> None:
    tally = runner.sweep([History(seed) for seed in range(1, 10_001)], 2)
    assert (tally.failures, tally.differing) == ([], [])


@pytest.mark.long
def test_every_planted_bug_is_found_within_ten_thousand_seeds() -> None:
    seeds = dict.fromkeys(sorted(mutants.MUTANTS), range(1, 10_001))
    escaped = [name for name, found in runner.hunt(seeds, "both", 2) if not found]
    assert escaped == []

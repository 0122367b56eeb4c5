"""The figures of `blackbox.py` as tables: the median of the runs, the smallest and the largest, and whether aims are held."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Figures = dict[str, Any]
Sizes = dict[str, Any]


@dataclass(frozen=True)
class FigureKind:
    """A row of the table: which rounds it is of, what it makes of the seconds of one, and the aims of systems."""

    title: str
    rounds: str
    convert: Callable[[Figures, Sizes], float]
    aims: dict[str, float]
    more_is_better: bool = False
    digits: int = 2


def _both(aim: float) -> dict[str, float]:
    return {"dev": aim, "processes": aim}


def _count_items_s(each: Figures, sizes: Sizes) -> float:
    return float(sizes["items"] / each["seconds"])


def _get_step_ms(each: Figures, sizes: Sizes) -> float:
    return float(each["seconds"] / sizes["steps"] * 1000)


def _get_seconds(each: Figures, sizes: Sizes) -> float:
    return float(each["seconds"])


KINDS = [
    FigureKind(
        "S1: ms a step",
        "S1",
        _get_step_ms,
        {"dev": 2.0, "processes": 2.5},
    ),
    FigureKind(
        "S1: the same, noetl.client",
        "S1 client",
        _get_step_ms,
        {},
    ),
    FigureKind(
        "S2: steps/s",
        "S2",
        lambda each, sizes: sizes["executions"] * sizes["short"] / each["seconds"],
        _both(1_500),
        more_is_better=True,
        digits=0,
    ),
    FigureKind(
        "S3: items/s, first time",
        "S3 first",
        _count_items_s,
        _both(12_000),
        more_is_better=True,
        digits=0,
    ),
    FigureKind("S3: items/s, again", "S3 again", _count_items_s, {}, more_is_better=True, digits=0),
    FigureKind(
        "S3: items/s, `chunk: 1`",
        "S3 each",
        _count_items_s,
        _both(2_500),
        more_is_better=True,
        digits=0,
    ),
    FigureKind("S4: s", "S4", _get_seconds, _both(0.4)),
    FigureKind("S4: s, first time", "S4 first", _get_seconds, {}),
    FigureKind("S5: s", "S5", _get_seconds, _both(0.8)),
    FigureKind("S6: s after the loss", "S6", _get_seconds, _both(1.0)),
    FigureKind(
        "S2: bytes of WAL a step",
        "S2",
        lambda each, sizes: each["wal_bytes"],
        _both(3_000),
        digits=0,
    ),
]
SERVER_MB, WORKER_MB, IDLE_PERCENT = 110, 130, 2.0
COSTS = ("S1", "S1 client", "S2", "S3 first", "S3 again", "S3 each", "S4")


def print_report(found: Figures) -> None:
    systems = list(found["runs"][0])
    limits = found["limits"]
    print(
        f"limits: a commit {limits['commit_ms']:.3f} ms; {limits['group_commit_s']} commits/s by 64 producers;"
        f" {limits['child_call_s']} calls/s of a Python child, one after the other"
    )
    print(f"medians of {len(found['runs'])} runs (smallest–largest)\n")
    print(f"{'':28}" + "".join(f"{name:>30}" for name in systems))
    for kind in KINDS:
        cells = [format_cell(kind, found, name) for name in systems]
        if any(cells):
            print(f"{kind.title:28}" + "".join(f"{cell:>30}" for cell in cells))
    print("\nfor each step or item (of S4: for all), median of the runs")
    for name in systems:
        for rounds in COSTS:
            print_costs(name, rounds, found["runs"])
    for name in systems:
        print_memory(name, found["runs"][0][name])


def format_cell(kind: FigureKind, found: Figures, name: str) -> str:
    values = list_values(kind, found, name)
    if not values:
        return ""
    middle = statistics.median(values)
    text = f"{middle:.{kind.digits}f} ({min(values):.{kind.digits}f}–{max(values):.{kind.digits}f})"
    aim = kind.aims.get(name)
    if aim is None:
        return text
    is_held = middle >= aim if kind.more_is_better else middle <= aim
    return f"{text} {'held' if is_held else 'MISSED'}"


def list_values(kind: FigureKind, found: Figures, name: str) -> list[float]:
    """One value for each run: the median of its rounds."""
    values: list[float] = []
    for run in found["runs"]:
        rounds = run[name].get(kind.rounds, [])
        if rounds:
            values.append(statistics.median(kind.convert(each, found["sizes"]) for each in rounds))
    return values


def print_costs(name: str, rounds: str, runs: list[Figures]) -> None:
    measured = [each for run in runs for each in run[name].get(rounds, [])]
    if not measured:
        return

    def find_median(key: str) -> float:
        return statistics.median(each[key] for each in measured)

    roles = {
        role: [each["cpu_us"].get(role, 0) for each in measured] for role in measured[0]["cpu_us"]
    }
    busy = ", ".join(f"{role} {statistics.median(spent):.0f}" for role, spent in roles.items())
    print(
        f"  {name} {rounds}: {find_median('commits'):.2f} write commits, {find_median('wal_bytes'):.0f} bytes of WAL,"
        f" {find_median('busy_cores'):.2f} cores busy; us of processor: {busy}"
    )


def print_memory(name: str, figures: Figures) -> None:
    if "memory_mb" not in figures:
        return
    memory, idle = figures["memory_mb"], figures["idle_percent"]
    roles = [role for role in memory if role != "postgres"]
    parts = ", ".join(f"{role} {memory[role]} MB, idle {idle[role]} %" for role in roles)
    print(f"\n{name} after the scenarios (PSS): {parts}; postgres idle {idle['postgres']} %")
    idle_sum = sum(idle[role] for role in roles)
    if "server" in memory:
        worker_mb = memory["worker"] + memory["children"]
        print(f"  server at most {SERVER_MB} MB: {describe_aim(memory['server'] <= SERVER_MB)}")
        print(
            f"  worker with children {worker_mb:.1f} MB, at most {WORKER_MB} MB: {describe_aim(worker_mb <= WORKER_MB)}"
        )
    print(
        f"  idle {idle_sum:.2f} % of a core, less than {IDLE_PERCENT} %: {describe_aim(idle_sum < IDLE_PERCENT)}"
    )


def describe_aim(is_held: bool) -> str:
    return "held" if is_held else "MISSED"

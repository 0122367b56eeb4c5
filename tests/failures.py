"""How every way to fail ends, for every way to handle it: one table for the simulator and for real processes.

A cell is what fails (a step, an item of a loop, a child playbook, a Spark step), how it fails, and what the playbook says about
it.
`expected` is the rule, written once and without the code that is tested.
"""

from dataclasses import dataclass
from itertools import product
from typing import Literal

Unit = Literal["step", "loop", "child", "spark"]
How = Literal["fails", "fails_after_retries", "times_out", "worker_lost", "cancelled"]
Handling = Literal[
    "no_arc", "plain_arc", "guard_without_outcome", "guard_with_outcome", "else_policy"
]

UNITS: tuple[Unit, ...] = ("step", "loop", "child", "spark")
HOWS: tuple[How, ...] = ("fails", "fails_after_retries", "times_out", "worker_lost", "cancelled")
HANDLINGS: tuple[Handling, ...] = (
    "no_arc", "plain_arc", "guard_without_outcome", "guard_with_outcome", "else_policy",
)  # fmt: skip


@dataclass(frozen=True)
class FailureCell:
    unit: Unit
    how: How
    handling: Handling

    @property
    def name(self) -> str:
        return f"{self.unit}-{self.how}-{self.handling}"


@dataclass(frozen=True)
class Expected:
    status: Literal["completed", "failed", "cancelled"]
    recovered: int
    why: str

    @property
    def exit_code(self) -> int:
        return 0 if self.status == "completed" else 1


CELLS = tuple(FailureCell(*cell) for cell in product(UNITS, HOWS, HANDLINGS))


def find_expected(cell: FailureCell) -> Expected:
    if cell.how == "cancelled" and cell.unit != "child":
        return Expected(
            "cancelled", 0, "the execution itself is cancelled: nothing is routed any more"
        )
    if cell.handling == "guard_with_outcome":
        return Expected(
            "completed", 1, "the guard mentions the outcome, so the arc handles the failure"
        )
    if cell.handling == "else_policy":
        return _with_else_policy(cell)
    return Expected("failed", 0, "no arc says that it handles a failure")


def _with_else_policy(cell: FailureCell) -> Expected:
    """`else: {do: continue}` on the task. How a child failed does not matter: its failure is the outcome of the task."""
    if cell.how == "fails_after_retries":
        return Expected(
            "failed", 0, "the retry matched and is used up; `else` is for what no rule matched"
        )
    if cell.how == "worker_lost" and cell.unit != "child":
        return Expected("failed", 0, "the policy runs on the worker, and the worker is gone")
    return Expected("completed", 1, "no rule matched, and `else` lets the error pass")

"""How people see the steps of an execution: in the words of executions, whatever the log calls them."""

from dataclasses import dataclass

from noetl.engine.state import Execution

WORDS = {"ok": "completed", "error": "failed", "none": "waiting"}  # the others are called the same


@dataclass(frozen=True, slots=True)
class Seen:
    status: str
    runs: int


def steps_of(state: Execution) -> dict[str, Seen]:
    """By name, in the order they began."""
    seen = {name: Seen(WORDS.get(record.status, record.status), record.runs) for name, record in state.steps.items()}
    for activation in state.activations.values():
        known = seen.get(activation.step)
        seen[activation.step] = Seen("running", max(activation.run, known.runs if known is not None else 0))
    return seen

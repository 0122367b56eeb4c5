"""Rewind an ended execution to the last entry of one of its steps, for a rerun from that step.

The step runs again, and so do the steps that its arcs lead to. They see variables, results and
arguments of that moment, because their later events are left out. Branches beside the step do not
run again; their events after that moment are kept.
"""

from msgspec import Struct
from msgspec.structs import replace

from noetl.engine import playbook_state
from noetl.engine.fold import FINAL_CAUSE, evolve
from noetl.engine.state import Activation, Execution, KnownState, Record, Unfinished
from noetl.model import events as e
from noetl.model.ids import ExecutionId, Micros
from noetl.playbook.assignments import assign_ctx
from noetl.playbook.plan import Plan


class RewoundExecution(Struct, frozen=True, kw_only=True):
    """The execution as a rerun from the step sees it. `run` is the number of the step's last
    activation."""

    state: Execution
    run: int
    entered_at: Micros
    final: bool  # the step ran as the final step of the execution


class ExecutionRewinder:
    """Folds the events of an ended execution one by one, from the first. Keeps only two states."""

    def __init__(self, plan: Plan, execution_id: ExecutionId, step: str) -> None:
        self._step = step
        self._again = {step, *plan.steps_after(step)}
        if plan.final_step is not None:
            self._again.add(plan.final_step)
        self._now = Execution(execution_id=execution_id)
        self._entered: e.StepEnter | None = None
        # The state before the last entry, with the later changes by branches beside the step.
        self._then = self._now
        # Arrivals from those branches at steps that run again.
        self._arrivals: list[Unfinished] = []

    def fold_event(self, event: e.Event) -> None:
        before, self._now = self._now, evolve(self._now, event)
        if isinstance(event, e.StepEnter) and event.step == self._step:
            self._entered = event
            self._then = before
            self._arrivals = []
        elif self._entered is not None and getattr(event, "step", self._step) not in self._again:
            self._add_event_beside(before, event)

    def _add_event_beside(self, before: Execution, event: e.Event) -> None:
        assignments = getattr(event, "set", {})
        if self._now.ctx is not before.ctx:
            self._then = replace(self._then, ctx=assign_ctx(self._then.ctx, assignments))
        if self._now.playbook_state is not before.playbook_state:
            self._then = playbook_state.fold_writes(self._then, event)
        if isinstance(event, e.NextEvaluated):
            arrivals = [Unfinished(chosen.step, chosen.args) for chosen in event.chosen]
        elif isinstance(event, e.StepSkipped) and event.next is not None:
            arrivals = [Unfinished(event.next)]
        else:
            return
        self._arrivals += [arrival for arrival in arrivals if arrival.step in self._again]

    def make_rewound(self) -> RewoundExecution | None:
        """The rewound execution. None if the step was never entered."""
        if self._entered is None:
            return None
        state = replace(
            self._then,
            status="running",
            steps=self._select_records(),
            unfinished=self._list_unfinished(self._entered),
            playbook_state=self._select_state_values(),
        )
        return RewoundExecution(
            state=state,
            run=self._entered.run,
            entered_at=self._entered.at,
            final=self._entered.cause == FINAL_CAUSE,
        )

    def _select_records(self) -> dict[str, Record]:
        """The records that the rerun sees: of that moment for steps that run again, the last ones
        for the others."""
        cut_off = {start.step for start in self._now.unfinished}
        records: dict[str, Record] = {}
        for step, record in self._now.steps.items():
            if step not in self._again and (step not in cut_off or record.loop is not None):
                records[step] = record
        for step, record in self._then.steps.items():
            if step in self._again:
                records[step] = _reset_loop(record)
        return records

    def _list_unfinished(self, entry: e.StepEnter) -> tuple[Unfinished, ...]:
        """Where the rerun begins: at the step itself, then at other live steps that run again."""
        live: list[Activation] = sorted(
            self._then.activations.values(), key=lambda activation: activation.order
        )
        running = [
            Unfinished(activation.step, activation.args)
            for activation in live
            if activation.step in self._again
        ]
        held_arrivals: list[tuple[tuple[int, int], Unfinished]] = []
        for step, tokens in self._then.tokens.items():
            if step in self._again and step != entry.step:
                held_arrivals += [(token.order, Unfinished(step, token.args)) for token in tokens]
        held_arrivals.sort(key=lambda pair: pair[0])
        cut_off = [start for start in self._now.unfinished if start.step not in self._again]
        return (
            Unfinished(entry.step, entry.args),
            *running,
            *(arrival for _, arrival in held_arrivals),
            *self._arrivals,
            *cut_off,
        )

    def _select_state_values(self) -> dict[str, KnownState]:
        """The values of that moment with the latest versions of this execution. So only a write by
        another execution or person is a conflict."""
        known = {}
        for name, value in self._then.playbook_state.items():
            known[name] = replace(value, version=self._now.playbook_state[name].version)
        return known


def _reset_loop(record: Record) -> Record:
    """The record of a step that runs again. Its loop starts from the first item, but a loop
    that this execution inherited runs its failed items again."""
    if record.status == "inherited":
        return record
    return replace(record, loop=None)

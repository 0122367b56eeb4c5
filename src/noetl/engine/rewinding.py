"""Rewinding an ended execution to the moment at which one of its steps was last entered: a rerun from the step begins there.

The step and whatever its arcs lead to run again. They see variables, results and arguments as they were at that moment, because
later events of theirs are left out. Branches beside the step do not run again: what they did after that moment is kept.
"""

from msgspec import Struct
from msgspec.structs import replace

from noetl.engine import playbook_state
from noetl.engine.fold import FINAL, evolve
from noetl.engine.state import Activation, Execution, KnownState, Record, Unfinished
from noetl.model import events as e
from noetl.model.ids import ExecutionId, Micros
from noetl.playbook.assignments import assign_ctx
from noetl.playbook.plan import Plan


class Rewound(Struct, frozen=True, kw_only=True):
    """The execution as a rerun from the step sees it. `run` counts the activations of the step; this one is the last."""

    state: Execution
    run: int
    entered_at: Micros
    final: bool  # it ran as the final step of the execution


class Rewinding:
    """Takes the events of an ended execution one by one, from the first. Keeps two states, however many events there are."""

    def __init__(self, plan: Plan, execution_id: ExecutionId, step: str) -> None:
        self._step = step
        self._again = {step, *plan.steps_after(step)}
        if plan.final is not None:
            self._again.add(plan.final)
        self._now = Execution(execution_id=execution_id)
        self._entered: e.StepEnter | None = None
        self._then = (
            self._now
        )  # before the last entry, with what branches beside the step did since
        self._arrivals: list[Unfinished] = []  # at steps that run again, from branches beside them

    def add(self, event: e.Event) -> None:
        before, self._now = self._now, evolve(self._now, event)
        if isinstance(event, e.StepEnter) and event.step == self._step:
            self._entered = event
            self._then = before
            self._arrivals = []
        elif self._entered is not None and getattr(event, "step", self._step) not in self._again:
            self._add_beside(before, event)

    def _add_beside(self, before: Execution, event: e.Event) -> None:
        assigned = getattr(event, "set", {})
        if self._now.ctx is not before.ctx:
            self._then = replace(self._then, ctx=assign_ctx(self._then.ctx, assigned))
        if self._now.playbook_state is not before.playbook_state:
            self._then = playbook_state.fold_writes(self._then, event)
        if isinstance(event, e.NextEvaluated):
            arrived = (Unfinished(chosen.step, chosen.args) for chosen in event.chosen)
        elif isinstance(event, e.StepSkipped) and event.next is not None:
            arrived = (Unfinished(step) for step in (event.next,))
        else:
            return
        self._arrivals += (each for each in arrived if each.step in self._again)

    def result(self) -> Rewound | None:
        """None: the step was not entered."""
        if self._entered is None:
            return None
        state = replace(
            self._then,
            status="running",
            steps=self._steps(),
            unfinished=self._starts(self._entered),
            playbook_state=self._state_values(),
        )
        return Rewound(
            state=state,
            run=self._entered.run,
            entered_at=self._entered.at,
            final=self._entered.cause == FINAL,
        )

    def _steps(self) -> dict[str, Record]:
        cut_off = {each.step for each in self._now.unfinished}
        beside = {
            step: record
            for step, record in self._now.steps.items()
            if step not in self._again and (step not in cut_off or record.loop is not None)
        }
        again = {
            step: _as_seen(record)
            for step, record in self._then.steps.items()
            if step in self._again
        }
        return beside | again

    def _starts(self, entered: e.StepEnter) -> tuple[Unfinished, ...]:
        """The step itself; then whatever else was under way and is run again."""
        live: list[Activation] = sorted(
            self._then.activations.values(), key=lambda activation: activation.order
        )
        under_way = [Unfinished(each.step, each.args) for each in live if each.step in self._again]
        held = [
            (token.order, Unfinished(step, token.args))
            for step, tokens in self._then.tokens.items()
            for token in tokens
            if step in self._again and step != entered.step
        ]
        held.sort(key=lambda entry: entry[0])
        cut_off = [each for each in self._now.unfinished if each.step not in self._again]
        arrived = [arrival for _, arrival in held]
        return (
            Unfinished(entered.step, entered.args),
            *under_way,
            *arrived,
            *self._arrivals,
            *cut_off,
        )

    def _state_values(self) -> dict[str, KnownState]:
        """Values of that moment, with the versions that the execution left: only a write of somebody else is a conflict."""
        known = {}
        for name, value in self._then.playbook_state.items():
            known[name] = replace(value, version=self._now.playbook_state[name].version)
        return known


def _as_seen(record: Record) -> Record:
    """A loop that ran before begins anew. One that this execution had inherited begins with the failed items again."""
    return record if record.status == "inherited" else replace(record, loop=None)

"""The path of an execution: its events as lines that a case can state, in the order of the log.

    type step detail        step.enter a · task.done a.fetch · next.evaluated a -> b + c · playbook.failed a TIMEOUT
    line ×3                 three such lines in a row
    a · a -> b              a step that went well in one command: step.enter, command.issued, command.completed, call.done,
                            step.exit, next.evaluated (which chose nothing, or what is named)
    a fails · a fails -> b  the same with command.failed and call.error
    a passes                a step without work: step.enter, call.done, step.exit, next.evaluated
    begin · completed       playbook.initialized, workflow.initialized · playbook.completed
    {together: [[…], […]]}  branches that run side by side: each in its own order, in any order to each other

What the commands of a loop do stands gathered before its `loop.done`, one line per kind of event, `×3` when their number
follows from the playbook and `×n` when it is a matter of time. `command.claimed`, `command.started` and `command.progress` are
left out: whether they are recorded depends on how long a tool takes.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from noetl.model import events as e
from noetl.model.ids import call_id, timer_id

LEFT_OUT = (e.CommandClaimed, e.CommandStarted, e.CommandProgress)
BEGIN = ["playbook.initialized", "workflow.initialized"]
LIVES = {
    "": ["step.enter", "command.issued", "command.completed", "call.done", "step.exit"],
    " fails": ["step.enter", "command.issued", "command.failed", "call.error", "step.exit"],
    " passes": ["step.enter", "call.done", "step.exit"],
}
SHORT = re.compile(r"(?P<step>[\w-]+)(?P<how> fails| passes|)(?P<to> -> .+)?")
TIMES = re.compile(r"(?P<line>.*) ×(?P<times>\d+)")
LIFE = (
    "command.issued",
    "frame.claimed",
    "command.parked",
    "child.started",
    "child.ended",
    "timer.fired",
)
RUNS = 9  # of one task in one command, as far as children are concerned


@dataclass(frozen=True, slots=True)
class Line:
    text: str
    step: str = ""


# ---- as it happened ----------------------------------------------------------------------------------------------------


def tell_path(events: Iterable[e.Event]) -> list[Line]:
    teller = Teller()
    for event in events:
        teller.tell(event)
    return teller.lines


@dataclass
class Epoch:
    counted: bool
    gathered: Counter[str] = field(default_factory=Counter)


@dataclass
class Teller:
    lines: list[Line] = field(default_factory=list)
    epochs: dict[str, Epoch] = field(default_factory=dict)  # open loops, by activation
    activations: dict[str, str] = field(default_factory=dict)  # of commands
    steps: dict[str, str] = field(default_factory=dict)  # of activations
    commands: dict[str, str] = field(default_factory=dict)  # of timers and calls

    def tell(self, event: e.Event) -> None:
        if isinstance(event, LEFT_OUT):
            return
        self._learn(event)
        activation = self._activation(event)
        if isinstance(
            event, e.PlaybookCompleted
        ):  # of branches side by side, which one was last is chance
            self._close(None)
            self.lines.append(Line(event.type))
            return
        step = self.steps.get(activation, getattr(event, "step", None) or "")
        words = [event.type, step + _task(event), *_detail(event)]
        text = " ".join(word for word in words if word)
        if isinstance(event, e.LoopDone | e.PlaybookFailed | e.ExecutionCancelled):
            self._close(activation if isinstance(event, e.LoopDone) else None)
        epoch = self.epochs.get(activation)
        if epoch is not None and not isinstance(event, e.LoopStarted | e.LoopDone):
            epoch.gathered[text] += 1
        else:
            self.lines.append(Line(text, _branch(event, step)))

    def _learn(self, event: e.Event) -> None:
        if isinstance(event, e.StepEnter):
            self.steps[event.activation] = event.step
            self.commands[timer_id(event.activation, "timeout")] = event.activation
        if isinstance(event, e.LoopStarted):
            counted = bool(event.chunk) or event.single or event.mode == "cursor"
            self.epochs[event.activation] = Epoch(counted)
        if isinstance(event, e.CommandIssued):
            self.activations[event.command_id] = event.activation
        if isinstance(event, e.CommandParked):
            for purpose in ("wait", "timeout"):
                self.commands[timer_id(event.command_id, f"{purpose}:{event.attempt}")] = (
                    event.command_id
                )
            for run in range(1, RUNS + 1):
                self.commands[call_id(event.command_id, event.task, run)] = event.command_id

    def _activation(self, event: e.Event) -> str:
        if known := getattr(event, "activation", None):
            return str(known)
        asked = getattr(event, "timer", None) or getattr(event, "call", None)
        command = self.commands.get(str(asked), "")
        return self.activations.get(command, command)

    def _close(self, activation: str | None) -> None:
        """What the loop's commands did, one line each; a loop that was never done is closed by the end."""
        for key in [activation] if activation is not None else list(self.epochs):
            if (epoch := self.epochs.pop(key, None)) is not None:
                for text in sorted(epoch.gathered, key=_in_order):
                    lines = [text] * epoch.gathered[text] if epoch.counted else [f"{text} ×n"]
                    self.lines += [Line(line, self.steps[key]) for line in lines]


def _branch(event: e.Event, step: str) -> str:
    """What tells the lines of branches side by side apart; signals are a branch of their own, an end ends all of them."""
    if isinstance(event, e.SignalReceived):
        return event.name
    return "" if isinstance(event, e.ExecutionCancelling | e.PlaybookFailed) else step


def _in_order(text: str) -> tuple[int, str]:
    """As one command would do it."""
    name = text.split(" ")[0]
    return LIFE.index(name) if name in LIFE else len(LIFE), text


def _task(event: e.Event) -> str:
    named = isinstance(event, e.TaskDone | e.CallPage | e.RetryStarted | e.SinkProcessed)
    return f".{event.task}" if named else ""


def _detail(event: e.Event) -> list[str]:
    match event:
        case e.CommandIssued(kind=kind) if kind != "run":
            return [kind]
        case e.CommandParked(reason=reason):
            return [reason]
        case e.NextEvaluated(chosen=chosen):
            return ["->", " + ".join(arc.step for arc in chosen)] if chosen else []
        case e.StepSkipped(next=str(onward)):
            return ["->", onward]
        case e.LoopStarted(collection=collection):
            return [str(collection.size)]
        case e.LoopDone(stats=stats):
            return [
                f"{count} {name}"
                for name in ("ok", "failed", "skipped")
                if (count := getattr(stats, name)) or name == "ok"
            ]
        case e.SignalReceived(name=name):
            return [name]
        case e.ChildEnded(result=result) if not result.ok:
            return ["error"]
        case e.FrameClaimed(size=size):
            return [str(size)]
        case e.PlaybookFailed(error=error):
            return [error.code]
        case e.ExecutionCancelling(reason=reason):
            return [reason]
        case _:
            return []


# ---- as it is stated ---------------------------------------------------------------------------------------------------


def compare_paths(path: Sequence[Any], happened: list[Line]) -> tuple[list[str], list[str]]:
    """What was stated and what happened, as lists of texts that are equal when the path is; branches side by side are put in
    the order in which they are stated."""
    stated: list[str] = []
    ordered: list[str] = []
    rest = list(happened)
    for entry in path:
        if isinstance(entry, dict):
            branches = [expand_path(branch) for branch in entry["together"]]
            took = _side_by_side(branches, rest)
            stated += [line for branch in branches for line in branch]
        else:
            lines = expand_path([entry])
            stated += lines
            took, rest = rest[: len(lines)], rest[len(lines) :]
        ordered += [line.text for line in took]
    return stated, ordered + [line.text for line in rest]


def _side_by_side(branches: list[list[str]], rest: list[Line]) -> list[Line]:
    """The lines of these branches from the front of `rest`, branch by branch; those of other steps end the group."""
    owner = {_step(line): number for number, branch in enumerate(branches) for line in branch}
    size = next((at for at, line in enumerate(rest) if line.step not in owner), len(rest))
    group, rest[:] = rest[:size], rest[size:]
    return sorted(group, key=lambda line: owner[line.step])


def _step(line: str) -> str:
    return line.split(" ")[1].partition(".")[0]


def expand_path(path: Sequence[str]) -> list[str]:
    return [line for entry in path for line in _expand_entry(entry)]


def _expand_entry(entry: str) -> list[str]:
    if entry == "begin":
        return BEGIN
    if entry == "completed":
        return ["playbook.completed"]
    if times := TIMES.fullmatch(entry):
        return [times["line"]] * int(times["times"])
    if short := SHORT.fullmatch(entry):
        lived = [f"{event} {short['step']}" for event in LIVES[short["how"]]]
        return [*lived, f"next.evaluated {short['step']}{short['to'] or ''}"]
    return [entry]


def shorten_path(lines: Sequence[str]) -> list[str]:
    """The same path as a case would state it."""
    short: list[str] = []
    at = 0
    while at < len(lines):
        entry, length = _shortest(lines, at)
        short.append(entry)
        at += length
    return short


def _shortest(lines: Sequence[str], at: int) -> tuple[str, int]:
    if list(lines[at : at + 2]) == BEGIN:
        return "begin", 2
    if lines[at] == "playbook.completed":
        return "completed", 1
    words = lines[at].split(" ")
    for said, shape in LIVES.items() if words[0] == "step.enter" else ():
        life = [f"{event} {words[1]}" for event in shape]
        last = lines[at + len(life)] if at + len(life) < len(lines) else ""
        if list(lines[at : at + len(life)]) == life and last.startswith(
            f"next.evaluated {words[1]}"
        ):
            return words[1] + said + last.removeprefix(f"next.evaluated {words[1]}"), len(life) + 1
    times = next(
        (n for n in range(1, len(lines) - at) if lines[at + n] != lines[at]), len(lines) - at
    )
    return (lines[at], 1) if times == 1 else (f"{lines[at]} ×{times}", times)

"""Journals: where a new attempt of a command goes on. Every entry replaces what it supersedes, so a journal stays small."""

from msgspec.structs import replace

from noetl.engine import recoveries, tallies
from noetl.engine.state import Execution, OpenCommand
from noetl.model import events as e
from noetl.model.commands import Journal, Page
from noetl.playbook.assignments import assign_ctx, assign_scratch


def task_done(state: Execution, event: e.TaskDone) -> Execution:
    live = state.commands[event.command_id]
    before = live.journal
    result = event.result
    journal = Journal(
        goto=event.goto,
        runs={**before.runs, event.task: event.run},
        results=before.results
        if event.transparent
        else {**before.results, event.task: result.bare()},
        prev=result.bare() if result.ok and not event.transparent else before.prev,
        last=before.last if event.transparent else result.bare(),
        jumps=event.jumps,
        set={**before.set, **event.set},
        recovered=event.recovered,
    )
    return _assigned(_with(state, live, journal), live, event.set)


def page(state: Execution, event: e.CallPage) -> Execution:
    live = state.commands[event.command_id]
    stored = Page(event.page, event.cursor, event.result.bare())
    journal = replace(
        live.journal, page=stored, tries=0, resolved=None, set={**live.journal.set, **event.set}
    )
    return _assigned(_with(state, live, journal), live, event.set)


def retried(state: Execution, event: e.RetryStarted) -> Execution:
    live = state.commands[event.command_id]
    journal = replace(
        live.journal, tries=event.tries, resolved=None, set={**live.journal.set, **event.set}
    )
    return _assigned(_with(state, live, journal), live, event.set)


def progress(state: Execution, event: e.CommandProgress) -> Execution:
    live = state.commands[event.command_id]
    activation = state.activations[live.activation]
    assert activation.loop is not None, "only a chunk makes progress"
    loop = tallies.progressed(activation.loop, live, event.done, event.items)
    changed = replace(activation, loop=loop)
    state = _with(state, live, replace(live.journal, done=event.done))
    state = recoveries.by_rule(state, event.step, event.items.recovered)
    return replace(state, activations={**state.activations, changed.id: changed})


def shard(state: Execution, event: e.LoopShardDone) -> Execution:
    live = state.commands[event.command_id]
    activation = state.activations[live.activation]
    assert activation.loop is not None, "only a loop has partitions"
    changed = replace(activation, loop=tallies.sharded(activation.loop, event.items))
    state = _with(state, live, replace(live.journal, shards=(*live.journal.shards, event.shard)))
    return replace(state, activations={**state.activations, changed.id: changed})


def frame(state: Execution, event: e.FrameClaimed) -> Execution:
    """Its rows follow those of every frame that was claimed before."""
    live = state.commands[event.command_id]
    activation = state.activations[live.activation]
    loop = activation.loop
    assert loop is not None, "only a loop claims frames"
    changed = replace(activation, loop=replace(loop, claimed=loop.claimed + event.size))
    state = replace(state, activations={**state.activations, changed.id: changed})
    placed = replace(live, place=loop.claimed)
    return _with(state, placed, replace(live.journal, frame=event.reference, frame_size=event.size))


def knows(live: OpenCommand, event: e.Reported) -> bool:
    """The entry is in the journal already: the worker repeats it because its acknowledgement was lost."""
    journal = live.journal
    match event:
        case e.TaskDone():
            return event.run <= journal.runs.get(event.task, 0)
        case e.CallPage():
            if event.run <= journal.runs.get(event.task, 0):
                return True
            return journal.page is not None and event.page <= journal.page.number
        case e.RetryStarted():
            stored = journal.page.number if journal.page is not None else 0
            return (
                event.run <= journal.runs.get(event.task, 0)
                or event.page < stored
                or event.tries <= journal.tries
            )
        case e.CommandProgress():
            return event.done <= max(journal.done, live.first)
        case e.LoopShardDone():
            return event.shard in journal.shards
        case e.FrameClaimed():
            return journal.frame_size is not None
        case _:
            return False


def _with(state: Execution, live: OpenCommand, journal: Journal) -> Execution:
    return replace(state, commands={**state.commands, live.id: replace(live, journal=journal)})


def _assigned(state: Execution, live: OpenCommand, values: dict[str, object]) -> Execution:
    if not values:
        return state
    activation = state.activations[live.activation]
    activation = replace(activation, scratch=assign_scratch(activation.scratch, values))
    return replace(
        state,
        ctx=assign_ctx(state.ctx, values),
        activations={**state.activations, activation.id: activation},
    )

"""Journals: where a new attempt of a command continues.

Every entry replaces the one that it supersedes, so a journal stays small.
"""

from msgspec.structs import replace

from noetl.engine import loop_counts, recoveries
from noetl.engine.state import Execution, OpenCommand
from noetl.model import events as e
from noetl.model.commands import Journal, Page
from noetl.playbook.assignments import assign_ctx, assign_scratch


def fold_task_done(state: Execution, event: e.TaskDone) -> Execution:
    command = state.commands[event.command_id]
    before = command.journal
    results, prev, last = before.results, before.prev, before.last
    if not event.transparent:
        last = event.result.without_context()
        results = {**results, event.task: last}
        if event.result.ok:
            prev = last
    journal = Journal(
        goto=event.goto,
        runs={**before.runs, event.task: event.run},
        results=results,
        prev=prev,
        last=last,
        jumps=event.jumps,
        set={**before.set, **event.set},
        recovered=event.recovered,
    )
    return _fold_assignments(_with_journal(state, command, journal), command, event.set)


def fold_page(state: Execution, event: e.CallPage) -> Execution:
    command = state.commands[event.command_id]
    journal = replace(
        command.journal,
        page=Page(event.page, event.cursor, event.result.without_context()),
        tries=0,
        resolved=None,
        set={**command.journal.set, **event.set},
    )
    return _fold_assignments(_with_journal(state, command, journal), command, event.set)


def fold_retry(state: Execution, event: e.RetryStarted) -> Execution:
    command = state.commands[event.command_id]
    journal = replace(
        command.journal,
        tries=event.tries,
        resolved=None,
        set={**command.journal.set, **event.set},
    )
    return _fold_assignments(_with_journal(state, command, journal), command, event.set)


def fold_progress(state: Execution, event: e.CommandProgress) -> Execution:
    command = state.commands[event.command_id]
    activation = state.activations[command.activation]
    assert activation.loop is not None, "only a chunk makes progress"
    loop = loop_counts.count_progress(activation.loop, command, event.done, event.items)
    activation = replace(activation, loop=loop)
    state = _with_journal(state, command, replace(command.journal, done=event.done))
    state = recoveries.count_rule_recovery(state, event.step, event.items.recovered)
    return replace(state, activations={**state.activations, activation.id: activation})


def fold_shard_done(state: Execution, event: e.LoopShardDone) -> Execution:
    command = state.commands[event.command_id]
    activation = state.activations[command.activation]
    assert activation.loop is not None, "only a loop has partitions"
    activation = replace(activation, loop=loop_counts.count_partition(activation.loop, event.items))
    journal = replace(command.journal, shards=(*command.journal.shards, event.shard))
    state = _with_journal(state, command, journal)
    return replace(state, activations={**state.activations, activation.id: activation})


def fold_frame_claimed(state: Execution, event: e.FrameClaimed) -> Execution:
    """Place the rows of the frame behind those of all frames that were claimed before."""
    command = state.commands[event.command_id]
    activation = state.activations[command.activation]
    loop = activation.loop
    assert loop is not None, "only a loop claims frames"
    place = loop.claimed
    activation = replace(activation, loop=replace(loop, claimed=place + event.size))
    state = replace(state, activations={**state.activations, activation.id: activation})
    journal = replace(command.journal, frame=event.reference, frame_size=event.size)
    return _with_journal(state, replace(command, place=place), journal)


def has_journal_entry(command: OpenCommand, event: e.Reported) -> bool:
    """Whether the journal has this entry. A worker repeats an entry if the acknowledgement of it
    was lost."""
    journal = command.journal
    match event:
        case e.TaskDone():
            return event.run <= journal.runs.get(event.task, 0)
        case e.CallPage():
            if event.run <= journal.runs.get(event.task, 0):
                return True
            return journal.page is not None and event.page <= journal.page.number
        case e.RetryStarted():
            if event.run <= journal.runs.get(event.task, 0):
                return True
            stored_page = journal.page.number if journal.page is not None else 0
            return event.page < stored_page or event.tries <= journal.tries
        case e.CommandProgress():
            return event.done <= max(journal.done, command.first)
        case e.LoopShardDone():
            return event.shard in journal.shards
        case e.FrameClaimed():
            return journal.frame_size is not None
        case _:
            return False


def _with_journal(state: Execution, command: OpenCommand, journal: Journal) -> Execution:
    return replace(
        state, commands={**state.commands, command.id: replace(command, journal=journal)}
    )


def _fold_assignments(
    state: Execution, command: OpenCommand, values: dict[str, object]
) -> Execution:
    if not values:
        return state
    activation = state.activations[command.activation]
    activation = replace(activation, scratch=assign_scratch(activation.scratch, values))
    return replace(
        state,
        ctx=assign_ctx(state.ctx, values),
        activations={**state.activations, activation.id: activation},
    )

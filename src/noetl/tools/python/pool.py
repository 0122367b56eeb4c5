"""A pool of Python child processes, each of which takes many calls, and the queue of waiting calls.

What a caller asks for together, such as a chunk of a loop, goes to one child as one message. So do
the single calls of one program that wait at the same time. The size of a message is not computed:
the engine has chosen the chunk. What a child has not begun after a few milliseconds is taken back
if another child can do it, or if calls of another program wait.

A child takes calls of one playbook only, because code may have changed its interpreter. New
children, which have run no code yet, wait for playbooks without an idle child.

When a child dies, the call that it was working on has crashed. Calls that it never started go to
another child. So do finished calls that had not been answered yet: at most a millisecond's worth of
them.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence

from noetl.tools.port import Log, PlaybookKey
from noetl.tools.processes.fork_server import ForkServer
from noetl.tools.python.calls import (
    AnswerListener,
    CallGroup,
    CallInput,
    PoolCall,
    Program,
    PythonProcessCrashed,
)
from noetl.tools.python.process import (
    MAX_MESSAGE_BYTES,
    MAX_MESSAGE_CALLS,
    PoolProcess,
    PoolSettings,
)

TAKE_BACK_AFTER_S = 0.005  # seconds until others may take over the rest of a message
SLOW_CALL_S = 0.025  # seconds without an answer after which the pool grows
MAX_IDLE_CHILD_S = 5.0  # seconds until an idle child is retired that is not worth keeping
MAX_LOST_CHILDREN = 3  # how often a call may lose its child


class PythonPool:
    """The children and the queue. A pool is bound to one event loop."""

    def __init__(self, fork_server: ForkServer, settings: PoolSettings) -> None:
        self.loop = asyncio.get_running_loop()
        self.fork_server = fork_server
        self.settings = settings
        self._children: set[PoolProcess] = set()  # those that take calls
        self._idle: list[PoolProcess] = []  # those of a playbook, the most recently used last
        self._new: list[PoolProcess] = []  # those that have run no code yet
        self._max_busy = min(settings.size, settings.most)  # grows while calls are slow
        self._new_wanted = 0
        self._last_playbook: PlaybookKey | None = None  # which took a new child last
        # Groups that can use a child. Programs take turns.
        self._queue: OrderedDict[Program, deque[CallGroup]] = OrderedDict()
        self._outstanding = 0  # number of waiting callers
        self.closed = False
        self._dispatch_scheduled = False
        self._watch_timer: asyncio.TimerHandle | None = None
        self._retire_timer: asyncio.TimerHandle | None = None

    def close(self) -> None:
        """From now on, a call that loses its child fails instead of being repeated."""
        self.closed = True

    def start(self) -> None:
        """Start `size` children before the first call."""
        self._new_wanted = self.settings.size
        self._add_new_children()

    async def run_calls(
        self,
        program: Program,
        calls: Sequence[tuple[CallInput, int]],
        log: Callable[[int], Log],
        listener: AnswerListener,
        *,
        at_once: int,
        stop: bool,
        columns: bool = False,
    ) -> None:
        """Run the calls, and pass every answer to the listener when it arrives.

        A call is its input and the number by which its log is asked for. At most `at_once` calls
        run at the same time. With `stop`, the calls that have not begun when one fails get no
        answer; with `at_once=1` these are all calls after it. With `columns`, answers may be
        `SharedRecords`. When this is cancelled, it returns after all calls have ended.
        """
        if not calls:
            return
        group = CallGroup(program, calls, log, listener, at_once, self.loop.create_future())
        group.columns = columns
        if stop and not group.is_single:
            group.stop = lambda: self._stop_group(group)
        self._enqueue(group)
        self._outstanding += 1
        if self._outstanding == 1:
            self._dispatch_queued()
        elif not self._dispatch_scheduled:
            # calls that are made in the same turn of the loop share a message
            self._dispatch_scheduled = True
            self.loop.call_soon(self._dispatch_queued)
        try:
            await group.done
        except asyncio.CancelledError:
            await self._withdraw_group(group)
            raise
        finally:
            self._outstanding -= 1

    # ---- for the children ------------------------------------------------------------------------

    def release_groups(self, child: PoolProcess) -> None:
        """The child does not work on its groups any more: another one may take what waits."""
        for group in child.groups:
            group.children.discard(child)
            if group.waiting:
                self._enqueue(group, first=True)
        child.groups = []

    def return_child(self, child: PoolProcess) -> None:
        """Take back a child that has finished its message."""
        if child.calls >= self.settings.calls:
            child.retire()
        elif child in self._children:
            self._idle.append(child)
            self._schedule_retiring()
        self._dispatch_queued()

    def remove_child(self, child: PoolProcess) -> None:
        self._children.discard(child)
        for children in (self._idle, self._new):
            if child in children:
                children.remove(child)

    def requeue_calls(self, calls: list[PoolCall], status: int = 0) -> None:
        """Put calls that a child has not run at the front of their groups."""
        groups: dict[CallGroup, None] = {}
        for call in reversed(calls):
            if call.is_over:
                continue
            group = call.group
            if group.stopped and not call.was_started:
                call.end_with(None)
                continue
            call.losses += status != 0
            if call.losses > MAX_LOST_CHILDREN or self.closed:
                call.end_with(PythonProcessCrashed(status))
                continue
            group.waiting.appendleft(call)
            groups[group] = None
        for group in groups:
            self._enqueue(group, first=True)
        self._dispatch_queued()

    def _take_back(self, child: PoolProcess) -> None:
        """Queue the calls that the child has not begun. It works no more on groups of these alone."""
        taken = child.take_unstarted()
        kept = {call.group for call in child.batch}
        for group in {call.group for call in taken} - kept:
            group.children.discard(child)
            child.groups.remove(group)
        self.requeue_calls(taken)

    # ---- the queue -------------------------------------------------------------------------------

    def _enqueue(self, group: CallGroup, *, first: bool = False) -> None:
        """Queue a group that can use a child."""
        if group.is_queued or not group.can_use_child:
            return
        group.is_queued = True
        groups = self._queue.setdefault(group.program, deque())
        if first:
            groups.appendleft(group)
        else:
            groups.append(group)

    def _remove_queued(self, group: CallGroup) -> None:
        if not group.is_queued:
            return
        group.is_queued = False
        groups = self._queue[group.program]
        groups.remove(group)
        if not groups:
            del self._queue[group.program]

    def _dispatch_queued(self) -> None:
        """Give queued calls to idle children."""
        self._dispatch_scheduled = False
        while self._queue and self._count_free_places() > 0:
            program, groups = next(iter(self._queue.items()))
            self._queue.move_to_end(program)
            child = self._take_child(program.playbook)
            if groups[0].is_single:
                self._send_single_calls(child, groups)
            else:
                self._send_part(child, groups[0])
        if self._watch_timer is None and self._needs_watching():
            self._watch_timer = self.loop.call_later(TAKE_BACK_AFTER_S, self._watch_messages)

    def _send_single_calls(self, child: PoolProcess, groups: deque[CallGroup]) -> None:
        """Send the single calls at the front of this queue to the child, as one message."""
        taken: list[CallGroup] = []
        batch: list[PoolCall] = []
        size = 0
        for group in groups:
            if not group.is_single or len(batch) == MAX_MESSAGE_CALLS:
                break
            call = group.waiting[0]
            size += len(call.encoded_input)
            if batch and (size > MAX_MESSAGE_BYTES or call.attached):
                break
            taken.append(group)
            batch.append(call)
            if call.attached:
                break
        for group in taken:
            groups.popleft()
            group.is_queued = False
            group.waiting.clear()
            group.children.add(child)
        if not groups:
            del self._queue[taken[0].program]
        child.start_batch(taken, batch)

    def _send_part(self, child: PoolProcess, group: CallGroup) -> None:
        """Send the calls of a group to the child, or its share of them if the group is divided."""
        waiting = group.waiting
        share = len(waiting)
        if group.is_divided:
            # Children that are busy with this group will be free again, so they get a share too.
            share = -(-share // (self._count_free_places() + 2))  # rounded up
        share = min(share, MAX_MESSAGE_CALLS)
        batch = [waiting.popleft()]
        size = len(batch[0].encoded_input)
        while len(batch) < share:
            size += len(waiting[0].encoded_input)
            if size > MAX_MESSAGE_BYTES:
                break
            batch.append(waiting.popleft())
        group.children.add(child)
        if not group.can_use_child:
            self._remove_queued(group)
        child.start_batch([group], batch)

    # ---- ending calls early ----------------------------------------------------------------------

    def _stop_group(self, group: CallGroup) -> None:
        """End the calls of a group that have not begun.

        Waiting calls end at once. Calls in messages end in the next turn of the event loop, because
        a child is just handling its answers.
        """
        group.stop = None
        group.stopped = True
        self._remove_queued(group)
        waiting = list(group.waiting)
        group.waiting = deque(call for call in waiting if call.was_started)
        self._enqueue(group, first=True)
        for call in waiting:
            if not call.was_started:
                call.end_with(None)
        self.loop.call_soon(self._recall_unstarted, group)

    def _recall_unstarted(self, group: CallGroup) -> None:
        for child in list(group.children):
            self._take_back(child)

    async def _withdraw_group(self, group: CallGroup) -> None:
        """End the calls of a cancelled caller. A child that has started one is stopped."""
        self._remove_queued(group)
        group.waiting.clear()
        stopped: list[PoolProcess] = []
        for child in list(group.children):
            for call in child.batch[child.answered :]:
                call.is_over |= call.group is group
            if child.process.ended.done():
                continue
            self.requeue_calls(child.take_unstarted())
            if any(call.group is group for call in child.batch[child.answered :]):
                child.stop_using()
                stopped.append(child)
        for child in stopped:
            await child.process.stop()

    # ---- long messages, growing and shrinking ----------------------------------------------------

    def _count_free_places(self) -> int:
        """How many more children may work."""
        busy = len(self._children) - len(self._idle) - len(self._new)
        return self._max_busy - busy

    def _take_child(self, playbook: PlaybookKey) -> PoolProcess:
        """A child of this playbook, or a new one. The caller gives it a message."""
        for position in range(len(self._idle) - 1, -1, -1):
            if self._idle[position].playbook == playbook:
                return self._idle.pop(position)
        if not self._new:
            self._add_new_child()
        child = self._new.pop()
        while len(self._idle) > self.settings.kept:
            self._idle[0].retire()
        if playbook != self._last_playbook and self._last_playbook is not None:
            self.loop.call_soon(self._add_new_children)  # other playbooks may follow
        self._last_playbook = playbook
        return child

    def _add_new_children(self) -> None:
        while len(self._new) < self._new_wanted and not self.closed:
            self._add_new_child()

    def _add_new_child(self) -> None:
        child = PoolProcess(self)
        self._children.add(child)
        self._new.append(child)

    def _needs_watching(self) -> bool:
        """Whether calls wait, in the queue or behind another call of their message."""
        return bool(self._queue) or any(child.unanswered > 1 for child in self._children)

    def _watch_messages(self) -> None:
        """Take back the rest of long messages, and add children while all are slow."""
        self._watch_timer = None
        now = self.loop.time()
        preempted = 0
        for child in list(self._children):
            if child.unanswered < 2 or child.began_at > now - TAKE_BACK_AFTER_S:
                continue
            program = child.groups[0].program
            waiting_programs = len(self._queue) - (program in self._queue)
            if waiting_programs > preempted:
                preempted += 1
                if program in self._queue:
                    self._queue.move_to_end(program)
            elif self._should_divide(child, now):
                for group in child.groups:
                    group.is_divided = True
            else:
                continue
            self._take_back(child)
        if self._queue:
            self._grow_if_slow(now)
        self._dispatch_queued()

    def _should_divide(self, child: PoolProcess, now: float) -> bool:
        """Whether other children should take over the rest of a message."""
        if not child.can_be_divided():
            return False
        has_room = self._count_free_places() > 0 and not self._queue
        return has_room or child.is_stalled(now - SLOW_CALL_S)

    def _grow_if_slow(self, now: float) -> None:
        """Let more children work if calls wait and no child has answered for a while."""
        slow_since = now - SLOW_CALL_S
        if all(child.progress_at <= slow_since for child in self._children if child.batch):
            usable = 0
            for groups in self._queue.values():
                usable += sum(group.count_usable_children() for group in groups)
            room = self.settings.most - self._max_busy
            self._max_busy += min(usable, self._max_busy, room)
        self._schedule_retiring()

    def _schedule_retiring(self) -> None:
        if self._retire_timer is None and self._may_retire():
            self._retire_timer = self.loop.call_later(MAX_IDLE_CHILD_S, self._retire_idle)

    def _may_retire(self) -> bool:
        has_many = len(self._children) - len(self._new) > self.settings.size
        return has_many or any(child.has_held_records for child in self._idle)

    def _retire_idle(self) -> None:
        """Retire idle children beyond `size`, and those that have held records."""
        self._retire_timer = None
        if self.closed:
            return
        idle_since = self.loop.time() - MAX_IDLE_CHILD_S
        idle = [child for child in self._idle if child.progress_at <= idle_since]
        idle.sort(key=lambda child: not child.has_held_records)
        for child in idle:
            has_many = len(self._children) - len(self._new) > self.settings.size
            if has_many or child.has_held_records:
                child.retire()
        used = len(self._children) - len(self._new)
        self._max_busy = max(min(self.settings.size, self.settings.most), used)
        self._add_new_children()
        self._schedule_retiring()

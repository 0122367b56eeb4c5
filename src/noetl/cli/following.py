"""Follows an execution to its end: shows what happens, cancels it on Ctrl-C, and reports its end."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial
from typing import Any, Protocol, TypeVar

import typer

from noetl.cli.output import EXIT_FAILED, EXIT_INTERRUPTED
from noetl.cli.story import EventDisplay, SilentDisplay, StepDisplay, Story, print_end
from noetl.cli.waits import PersonWait, list_state_waits, say_wait
from noetl.client.rows import Row
from noetl.log.events.port import RecordedEvent
from noetl.model.errors import Conflict, Unavailable
from noetl.model.ids import ExecutionId
from noetl.model.reference import Reference
from noetl.runtime.running_servers import find_server_address

# Seconds to wait for the last printed lines after the execution has ended.
LAST_LINES_TIMEOUT_S = 10.0
PROGRESS_INTERVAL_S = 1.0  # seconds
MAX_LOG_OUTAGE_S = 30.0  # seconds that the log may be unavailable while an execution is followed
OUTAGE_RETRY_S = 0.2  # seconds between two tries to read it

Answer = TypeVar("Answer")


class ExecutionDisplay(Protocol):
    """Shows an execution while it is followed; called whenever something was recorded.

    `logs`: it shows the lines that steps print. `live`: it shows the progress of tools.
    """

    logs: bool

    @property
    def live(self) -> bool: ...
    def __call__(self, story: Story) -> None: ...
    def show_log_lines(self, rows: list[Row]) -> None:
        """Show lines that steps printed."""
        ...

    def list_last_lines(self) -> Sequence[str]:
        """Lines to print at the end."""
        ...


class ExecutionSource(Protocol):
    """The part of a client that is needed to follow an execution. The memory cluster has it too."""

    async def wait_for_events(
        self, execution_id: ExecutionId, after: int
    ) -> list[RecordedEvent]: ...
    async def change_execution(self, execution_id: ExecutionId, how: Any) -> Any: ...
    def stream_logs(
        self, execution_id: ExecutionId, step: str | None = None, *, follow: bool = False
    ) -> AsyncGenerator[list[Row], None]: ...
    async def list_queue(
        self, status: str | None = None, execution_id: ExecutionId | None = None
    ) -> list[Row]: ...
    async def resolve(self, reference: Reference) -> Any: ...
    async def preview_result(self, execution_id: ExecutionId, step: str, rows: int) -> Row: ...
    async def get_workload(self, execution_id: ExecutionId) -> Row: ...
    async def get_cause(self, execution_id: ExecutionId, min_seq: int) -> Row | None: ...


AnnounceWait = Callable[[ExecutionId, PersonWait], None]


async def follow_execution(
    site: ExecutionSource,
    execution_id: ExecutionId,
    show: ExecutionDisplay,
    stop: asyncio.Event,
    announce_wait: AnnounceWait = say_wait,
) -> Story:
    """Follow an execution to its end. Cancels it when `stop` is set.

    `announce_wait` is called once for each thing that it waits for and that a person can give.
    """
    try:
        return await _follow_to_end(site, execution_id, show, stop, announce_wait)
    except Unavailable as error:
        error.hint = (
            f"execution {execution_id} is not lost: it goes on with its server, and then "
            f"noetl exec events {execution_id} --follow follows it again"
        )
        raise


async def _follow_to_end(
    site: ExecutionSource,
    execution_id: ExecutionId,
    show: ExecutionDisplay,
    stop: asyncio.Event,
    announce_wait: AnnounceWait,
) -> Story:
    story = Story(execution_id)
    said: set[PersonWait] = set()
    async with _show_logs(site, story, show), _show_progress(site, story, show):
        while not story.is_finished:
            if stop.is_set():
                await _cancel_execution(site, execution_id)
                stop = asyncio.Event()  # never set: it is cancelled once, and followed to its end
            recorded = await _read_next_events(site, story, stop)
            story.add_events(recorded)
            if recorded:
                show(story)
            for wait in list_state_waits(story.state):
                if wait not in said:
                    said.add(wait)
                    announce_wait(execution_id, wait)
    await story.read_results(site.resolve, site.preview_result)
    story.workload = await site.get_workload(execution_id)
    if story.status == "failed":
        with suppress(Unavailable):  # the story has the failure already
            story.cause = await site.get_cause(execution_id, story.last_seq)
    return story


@asynccontextmanager
async def _show_logs(
    site: ExecutionSource, story: Story, show: ExecutionDisplay
) -> AsyncIterator[None]:
    """Show the lines that steps print while the execution is followed.

    The last lines are stored before the end of the execution, so they are waited for.
    """
    if not show.logs:
        yield
        return

    async def show_lines() -> None:
        async with aclosing(site.stream_logs(story.state.execution_id, follow=True)) as pages:
            async for rows in pages:
                show.show_log_lines(rows)

    showing = asyncio.ensure_future(show_lines())
    try:
        yield
        if story.state.terminal:
            await asyncio.wait((showing,), timeout=LAST_LINES_TIMEOUT_S)
    finally:
        showing.cancel()
        (outcome,) = await asyncio.gather(showing, return_exceptions=True)
    if isinstance(outcome, Unavailable):
        print(f"the rest of the log could not be read: {outcome}", file=sys.stderr)
    elif isinstance(outcome, Exception):
        raise outcome


@asynccontextmanager
async def _show_progress(
    site: ExecutionSource, story: Story, show: ExecutionDisplay
) -> AsyncIterator[None]:
    """Show the progress of tools that run for a while.

    Progress is not recorded, so the queue is read for it, but only if a command is older than one
    interval.
    """
    if not show.live:
        yield
        return

    async def show_progress() -> None:
        before: set[str] = set()
        while True:
            await asyncio.sleep(PROGRESS_INTERVAL_S)
            commands: set[str] = set(story.state.commands)
            lasting, before = before & commands, commands
            with suppress(Unavailable):
                rows: list[Row] = []
                if lasting:
                    rows = await site.list_queue("leased", story.state.execution_id)
                story.tool_progress = {
                    row["step"]: row["progress"] for row in rows if row["progress"]
                }
                show(story)

    showing = asyncio.ensure_future(show_progress())
    try:
        yield
    finally:
        showing.cancel()
        await asyncio.gather(showing, return_exceptions=True)


async def _cancel_execution(site: ExecutionSource, execution_id: ExecutionId) -> None:
    print(f"cancelling execution {execution_id}; Ctrl-C again leaves at once", file=sys.stderr)
    with suppress(Conflict):  # it has ended meanwhile
        await site.change_execution(execution_id, "cancel")


async def _read_next_events(
    site: ExecutionSource, story: Story, stop: asyncio.Event
) -> list[RecordedEvent]:
    """The next events, or none if `stop` is set first."""
    wait = partial(site.wait_for_events, story.state.execution_id, story.last_seq)
    reading = asyncio.ensure_future(read_through_outage(wait))
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((reading, stopping), return_when=asyncio.FIRST_COMPLETED)
        return reading.result() if reading.done() else []
    finally:
        for task in (reading, stopping):
            task.cancel()
        await asyncio.gather(reading, stopping, return_exceptions=True)


async def read_through_outage(read: Callable[[], Awaitable[Answer]]) -> Answer:
    """Read, again and again while the log is unavailable, but not for ever. Says so once."""
    loop = asyncio.get_running_loop()
    deadline: float | None = None
    while True:
        try:
            return await read()
        except Unavailable as error:
            if deadline is None:
                deadline = loop.time() + MAX_LOG_OUTAGE_S
                print(f"{error}; trying again for {MAX_LOG_OUTAGE_S:.0f} s", file=sys.stderr)
            if loop.time() > deadline:
                raise
            await asyncio.sleep(OUTAGE_RETRY_S)


@asynccontextmanager
async def catch_interrupts() -> AsyncIterator[asyncio.Event]:
    """An event that the first Ctrl-C (or SIGTERM) sets. The second ends the process.

    An execution that is left this way stays as it is.
    """
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def stop_or_exit() -> None:
        if stop.is_set():
            os._exit(
                EXIT_INTERRUPTED
            )  # ends even a process that hangs; child processes end by themselves
        stop.set()

    signals = (signal.SIGINT, signal.SIGTERM)
    for number in signals:
        loop.add_signal_handler(number, stop_or_exit)
    try:
        yield stop
    finally:
        for number in signals:
            loop.remove_signal_handler(number)


def make_display(as_json: bool, watch: bool, logs: bool = False) -> ExecutionDisplay:
    """The display that the options ask for."""
    if as_json:
        return SilentDisplay(logs)
    if watch:
        return EventDisplay(logs)
    return StepDisplay(logs)


def finish_command(
    story: Story,
    as_json: bool,
    *,
    durable: bool = True,
    lines: Sequence[str] = (),
) -> None:
    """Print how the execution ended, and exit with the code that says the same."""
    if as_json:
        row = json.dumps(story.to_dict(), ensure_ascii=False)
        sys.stdout.write(row + "\n")
    else:
        address = find_server_address() if durable else None
        print_end(story, durable=durable, lines=lines, server_address=address)
    raise typer.Exit(0 if story.status == "completed" else EXIT_FAILED)

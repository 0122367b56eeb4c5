"""Live pages: one fold and one difference per interval for all watchers of an execution.

A watched execution has one task that waits for wake-ups, takes the newest fold, and makes a message of
what has changed since the last one. Every watcher gets the same bytes. A watcher holds one message at
most: if it has not taken one before the next is made, it gets a whole page instead.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from noetl.engine.bands import Bands
from noetl.engine.buckets import SERIES
from noetl.engine.execution_fold import ExecutionFold
from noetl.model.clock import format_iso
from noetl.model.errors import NoetlError, Unavailable
from noetl.model.ids import ExecutionId, Tenant
from noetl.server.inspection.page import PageFacts, make_page
from noetl.server.inspection.views import BandChangeView, ChangeOfPageView, PageView
from noetl.server.streams.live import LiveUpdates, make_events_topic, make_logs_topic

log = logging.getLogger(__name__)

MIN_MESSAGE_INTERVAL_S = 0.25  # seconds between two messages, at least
WATCH_POLL_S = 1.0  # seconds between reads without a wake-up
HEARTBEAT_INTERVAL_S = 10.0
MAX_CHANGE_BYTES = 16 * 1024  # a larger change is sent as a whole page
MAX_CHANGE_EVENTS = 5_000  # a watcher that is further behind gets a whole page


@dataclass(frozen=True, slots=True)
class WatchMessage:
    """One message of the stream. `base`: the event that the watcher must have seen before."""

    kind: str  # view, delta or end
    seq: int
    data: bytes
    base: int | None = None


@dataclass(frozen=True, slots=True)
class LivePage:
    """A page as it was shown, with what its differences are made of."""

    view: PageView
    logs_part: int
    series: dict[str, "BandState"]


@dataclass(frozen=True, slots=True)
class BandState:
    """The buckets of a step as they were sent."""

    last_seq: int
    origin: int
    width_us: int
    series: dict[str, list[int]]


ReadPage = Callable[[Tenant, ExecutionId], Awaitable[tuple[ExecutionFold, PageFacts]]]


class Watcher:
    """One reader of an execution. It holds at most one message."""

    def __init__(self) -> None:
        self.arrived = asyncio.Event()
        self.message: WatchMessage | None = None
        self.is_behind = False  # it has missed a message, and needs a whole page
        self.is_over = False

    def offer(self, message: WatchMessage) -> None:
        if self.message is not None:
            self.is_behind = True
        self.message = message
        self.arrived.set()

    def take(self) -> WatchMessage | None:
        self.arrived.clear()
        message, self.message = self.message, None
        return message


class WatchedExecution:
    """Follows one execution for all its watchers."""

    def __init__(
        self, tenant: Tenant, execution_id: ExecutionId, read_page: ReadPage, live: LiveUpdates
    ) -> None:
        self._tenant = tenant
        self._execution_id = execution_id
        self._read_page = read_page
        self._live = live
        self._watchers: dict[Watcher, None] = {}
        self._page: LivePage | None = None
        self._first_page = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_idle(self) -> bool:
        return not self._watchers

    async def get_page(self) -> LivePage:
        """The page as of the last message. The first one is made once: changes are told from it on."""
        async with self._first_page:
            if self._page is None:
                self._page = await self._make_page()
            return self._page

    def add(self, watcher: Watcher) -> None:
        self._watchers[watcher] = None
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._follow())

    def remove(self, watcher: Watcher) -> None:
        self._watchers.pop(watcher, None)
        if not self._watchers and self._task is not None:
            self._task.cancel()
            self._task = None

    async def _follow(self) -> None:
        """Make messages until the execution ends or nobody watches."""
        topics = (make_events_topic(self._execution_id), make_logs_topic(self._execution_id))
        try:
            with self._live.watch(*topics) as watch:
                while not self._live.closing:
                    sent_at = asyncio.get_running_loop().time()
                    is_over = await self._send_change()
                    if is_over:
                        break
                    await watch.wait_for_change(WATCH_POLL_S)
                    passed = asyncio.get_running_loop().time() - sent_at
                    await asyncio.sleep(max(MIN_MESSAGE_INTERVAL_S - passed, 0))
        except NoetlError as error:
            log.warning("an execution is not followed", extra={"error": str(error)})
        finally:
            for watcher in self._watchers:
                watcher.is_over = True
                watcher.arrived.set()

    async def _send_change(self) -> bool:
        """Send what has changed since the last message. Returns whether it was the last one."""
        before = await self.get_page()
        try:
            page = await self._make_page()
        except Unavailable:
            return False
        change = make_change(before, page)
        self._page = page
        if change is not None:
            message = _encode_change(before, page, change)
            for watcher in self._watchers:
                watcher.offer(message)
        return page.view.ended_at is not None

    async def _make_page(self) -> LivePage:
        fold, facts = await self._read_page(self._tenant, self._execution_id)
        return LivePage(make_page(fold, facts), facts.logs_part, copy_bands(fold.bands))


class Watches:
    """The watched executions of this server."""

    def __init__(self, read_page: ReadPage, live: LiveUpdates) -> None:
        self._read_page = read_page
        self._live = live
        self._watched: dict[ExecutionId, WatchedExecution] = {}

    async def follow(
        self, tenant: Tenant, execution_id: ExecutionId, after: int
    ) -> AsyncGenerator[WatchMessage | None, None]:
        """The messages for a watcher that has seen the event `after`; None is a sign of life."""
        watched = self._watched.get(execution_id)
        if watched is None:
            watched = WatchedExecution(tenant, execution_id, self._read_page, self._live)
            self._watched[execution_id] = watched
        watcher = Watcher()
        watched.add(watcher)
        try:
            async for message in _follow_watched(watched, watcher, after):
                yield message
        finally:
            watched.remove(watcher)
            if watched.is_idle and self._watched.get(execution_id) is watched:
                del self._watched[execution_id]


async def _follow_watched(
    watched: WatchedExecution, watcher: Watcher, after: int
) -> AsyncGenerator[WatchMessage | None, None]:
    page = await watched.get_page()
    position = page.view.seq
    if position != after:
        yield _encode_page(page)
    while True:
        message = await _wait_for_message(watcher)
        if message is not None:
            if watcher.is_behind or message.base not in (None, position):
                watcher.is_behind = False
                page = await watched.get_page()
                if page.view.seq < position:
                    continue
                message = _encode_page(page)
            position = message.seq
            yield message
        elif watcher.is_over:
            page = await watched.get_page()
            if page.view.ended_at is not None:
                yield WatchMessage("end", position, b"{}")
            return
        else:
            yield None


async def _wait_for_message(watcher: Watcher) -> WatchMessage | None:
    """The next message; None if none comes in time, or the execution is over."""
    if watcher.message is None and not watcher.is_over:
        with suppress(TimeoutError):
            async with asyncio.timeout(HEARTBEAT_INTERVAL_S):
                await watcher.arrived.wait()
    return watcher.take()


# ---- messages (pure) ------------------------------------------------------------------------------


def copy_bands(bands: Bands) -> dict[str, BandState]:
    """The buckets of all steps as they are now."""
    states: dict[str, BandState] = {}
    for name, band in bands.steps.items():
        buckets = band.buckets
        series = {each: list(getattr(buckets, each)) for each in SERIES}
        states[name] = BandState(band.last_seq, buckets.origin, buckets.width_us, series)
    return states


def make_change(before: LivePage, page: LivePage) -> ChangeOfPageView | None:
    """What has changed between two pages; None if nothing has."""
    old, new = before.view, page.view
    if old == new and before.logs_part == page.logs_part:
        return None
    return ChangeOfPageView(
        seq=new.seq,
        number=new.number,
        events=new.events,
        status=new.status,
        updated_at=new.updated_at,
        ended_at=new.ended_at,
        error=new.error,
        failure=new.failure,
        steps={name: step for name, step in new.steps.items() if old.steps.get(name) != step},
        arcs={name: arc for name, arc in new.arcs.items() if old.arcs.get(name) != arc},
        failures=new.failures,
        live=new.live,
        live_total=new.live_total,
        bands=_diff_bands(before.series, page.series),
        logs_part=page.logs_part,
    )


def _diff_bands(
    before: dict[str, BandState], after: dict[str, BandState]
) -> dict[str, BandChangeView]:
    changes: dict[str, BandChangeView] = {}
    for name, state in after.items():
        known = before.get(name)
        if known is not None and known.last_seq == state.last_seq:
            continue
        first = 0
        if known is not None and (known.origin, known.width_us) == (state.origin, state.width_us):
            first = min(
                _find_first_change(known.series[each], state.series[each]) for each in SERIES
            )
        changes[name] = BandChangeView(
            start=format_iso(state.origin * state.width_us),
            width_us=state.width_us,
            from_=first,
            last_seq=state.last_seq,
            **{each: values[first:] for each, values in state.series.items()},
        )
    return changes


def _find_first_change(before: list[int], after: list[int]) -> int:
    for number, (old, new) in enumerate(zip(before, after, strict=False)):
        if old != new:
            return number
    return min(len(before), len(after))


def _encode_page(page: LivePage) -> WatchMessage:
    body = {**msgspec.to_builtins(page.view), "logs_part": page.logs_part}
    return WatchMessage("view", page.view.seq, msgspec.json.encode(body))


def _encode_change(before: LivePage, page: LivePage, change: ChangeOfPageView) -> WatchMessage:
    """The change; the whole page if the execution has ended, or if much has changed."""
    data = msgspec.json.encode(change)
    has_ended = page.view.ended_at != before.view.ended_at  # changes do not carry the result
    is_far = page.view.number - before.view.number > MAX_CHANGE_EVENTS
    is_large = len(data) > MAX_CHANGE_BYTES
    if has_ended or is_far or is_large or page.view.left_out != before.view.left_out:
        return _encode_page(page)
    return WatchMessage("delta", change.seq, data, base=before.view.seq)

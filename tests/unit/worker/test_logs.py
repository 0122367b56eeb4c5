"""Step logs on their way: order, limits, what happens when nobody takes them; a server made of a few lines, virtual time."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from noetl.model import events as e
from noetl.model.errors import InvalidInput, Unavailable
from noetl.model.exchange import ExchangeReply, ExchangeRequest
from noetl.model.messages import StoredRef
from noetl.model.reference import derive_ref_id, parse_uri
from noetl.model.steplogs import Line, decode, make_log_part_key, parse_log_part_key
from noetl.results.formats.encoding import compute_payload_checksum
from noetl.tools.port import Call
from noetl.tools.python.printed_lines import MAX_LINE_BYTES, StreamLines
from noetl.worker import logs
from noetl.worker.logs import StepLogs
from tests.unit.pipeline.bench import LoopClock, run_virtually
from tests.unit.worker.test_worker import ScriptedServer, issue, make_worker, until, working


class Shelf:
    """Takes parts, once each, and remembers every call."""

    def __init__(self) -> None:
        self.parts: dict[str, StoredRef] = {}
        self.calls: list[tuple[StoredRef, ...]] = []
        self.fails: list[Exception] = []
        self.busy: asyncio.Event | None = None  # while set to one, calls wait for it

    async def put_logs(self, parts: tuple[StoredRef, ...]) -> None:
        self.calls.append(parts)
        if self.busy is not None:
            await self.busy.wait()
        if self.fails:
            raise self.fails.pop(0)
        for part in parts:
            self.parts.setdefault(part.reference.uri, part)

    def lines(self) -> list[Line]:
        return [line for part in self.parts.values() for line in decode(part.payload or b"")]


class LoggedDesk(Shelf, ScriptedServer):  # type: ignore[misc]
    """A desk that takes logs too: with exchanges, before their reports, and beside them."""

    def __init__(self, *queue: Any) -> None:
        Shelf.__init__(self)
        ScriptedServer.__init__(self, list(queue))
        self.with_endings: list[tuple[StoredRef, ...]] = []

    async def exchange(self, request: ExchangeRequest) -> ExchangeReply:
        if request.logs:
            self.with_endings.append(request.logs)
            for part in request.logs:
                self.parts.setdefault(part.reference.uri, part)
        return await ScriptedServer.exchange(self, request)


async def send_logs(
    shelf: Shelf, printing: Callable[[StepLogs], None], fact: Callable[[], bool]
) -> StepLogs:
    made = StepLogs(shelf, LoopClock())  # type: ignore[arg-type]  # nothing else is asked of it
    printing(made)
    running = asyncio.ensure_future(made.run())
    await until(fact)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return made


def texts(lines: list[Line]) -> list[str]:
    return [line.line for line in lines]


# ---- order and addresses -----------------------------------------------------------------------------------------------


def test_lines_are_numbered_per_attempt_and_stored_in_order() -> None:
    shelf = Shelf()

    def printing(made: StepLogs) -> None:
        one, two = (
            made.open_attempt(issue(number=1), 1),
            made.open_attempt(issue(number=2, attempt=3), 1),
        )
        for number in range(3):
            one("a", number)("stdout", f"one {number}")
            two("b")("stderr", f"two {number}")

    run_virtually(send_logs(shelf, printing, lambda: bool(shelf.parts)))
    assert len(shelf.calls) == 1  # of all attempts together
    first, second = shelf.parts.values()
    lines = decode(first.payload or b"")
    assert [(line.seq, line.task, line.item, line.stream, line.line) for line in lines] == [
        (number + 1, "a", number, "stdout", f"one {number}") for number in range(3)
    ]
    where = parse_uri(second.reference.uri)
    assert (where.kind, where.step, parse_log_part_key(where.key)) == (
        "log",
        "s",
        parse_log_part_key("c2-3-0"),
    )
    assert second.reference.ref_id == derive_ref_id(second.reference.uri)
    assert second.reference.sha256 == compute_payload_checksum(second.payload or b"")


def test_a_key_says_whose_part_it_is_and_an_attempt_begun_again_has_other_keys() -> None:
    keys = {make_log_part_key("c1", 2, launch, part) for launch in (1, 2) for part in (0, 1)}
    assert len(keys) == 4
    assert {
        (made.command_id, made.attempt, made.part) for made in map(parse_log_part_key, keys) if made
    } == {
        ("c1", 2, 0),
        ("c1", 2, 1),
    }
    assert parse_log_part_key("nonsense") is None


def test_what_gathers_while_a_call_is_under_way_goes_with_the_next() -> None:
    shelf = Shelf()

    async def scene() -> None:
        shelf.busy = asyncio.Event()
        made = StepLogs(shelf, LoopClock())  # type: ignore[arg-type]
        running = asyncio.ensure_future(made.run())
        write = made.open_attempt(issue(), 1)("t")
        write("stdout", "0")
        await until(lambda: len(shelf.calls) == 1)
        for number in range(1, 100):
            write("stdout", str(number))
        shelf.busy.set()
        await until(lambda: len(shelf.lines()) == 100)
        assert len(shelf.calls) == 2
        running.cancel()

    run_virtually(scene())
    assert texts(shelf.lines()) == [str(number) for number in range(100)]
    assert [line.seq for line in shelf.lines()] == list(range(1, 101))


# ---- limits ------------------------------------------------------------------------------------------------------------


def test_a_long_line_is_cut_and_says_by_how_much() -> None:
    assert logs.cut_line("x" * logs.MAX_LINE_CHARS) == "x" * logs.MAX_LINE_CHARS
    assert (
        logs.cut_line("x" * (logs.MAX_LINE_CHARS + 7))
        == "x" * logs.MAX_LINE_CHARS + "… (7 characters more)"
    )


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_a_line_without_an_end_does_not_fill_the_memory(size: int) -> None:
    told: list[str] = []
    lines = StreamLines("stdout", lambda stream, line: told.append(line))
    data = b"a\n\n" + b"x" * (MAX_LINE_BYTES + 10) + b"\nlast"
    for start in range(0, len(data), size):
        lines.add(data[start : start + size])
        assert len(lines._line) <= MAX_LINE_BYTES
    lines.end()
    lines.end()
    assert told == ["a", "", "x" * MAX_LINE_BYTES, "(10 bytes of this line left out)", "last"]


@pytest.mark.parametrize("size", [1_000, 1 << 22])
def test_of_a_flood_every_byte_is_kept_or_counted(size: int) -> None:
    told: list[str] = []
    lines, data = (
        StreamLines("stdout", lambda stream, line: told.append(line)),
        (b"x" * 99 + b"\n") * 20_000 + b"rest",
    )
    for start in range(0, len(data), size):
        lines.add(data[start : start + size])
    lines.end()
    lines.end()
    assert set(told[:-1]) == {"x" * 99}
    lost = int(told[-1].removeprefix("(").split()[0])
    assert len(data) - 100 * len(told[:-1]) <= lost <= len(data) - 100 * len(told[:-1]) + 1


def test_of_an_attempt_that_prints_too_much_the_beginning_and_the_end_are_kept_and_what_is_between_is_counted() -> (
    None
):
    shelf, line = Shelf(), "x" * 1_000
    count = 3_000

    def printing(made: StepLogs) -> None:
        attempt = made.open_attempt(issue(), 1)
        for number in range(count):
            attempt("t")("stdout", f"{number:04}{line}")
        attempt.close()

    made = run_virtually(
        send_logs(shelf, printing, lambda: bool(shelf.lines()) and shelf.lines()[-1].seq == count)
    )
    lines = shelf.lines()
    (marker,) = [each for each in lines if each.stream == "noetl"]
    before, after = lines[: lines.index(marker)], lines[lines.index(marker) + 1 :]
    assert texts(before) == [f"{number:04}{line}" for number in range(len(before))]
    assert texts(after) == [f"{number:04}{line}" for number in range(count - len(after), count)]
    dropped = count - len(before) - len(after)
    assert marker.line == f"({dropped} lines, {dropped * 1_004} bytes left out)"
    assert [each.seq for each in lines] == sorted({each.seq for each in lines})
    assert len(before) * 1_004 > 0.9 * logs.MAX_ATTEMPT_BYTES
    assert len(after) * 1_004 > 0.9 * logs.MAX_POSTPONED_BYTES
    assert made.free_bytes == logs.MAX_UNSENT_BYTES
    assert max(len(part.payload or b"") for part in shelf.parts.values()) < 2 * logs.MAX_PART_BYTES


def test_while_no_server_takes_them_memory_is_bounded_and_what_was_left_out_is_said_once_they_do() -> (
    None
):
    shelf = Shelf()

    async def scene() -> StepLogs:
        made = StepLogs(shelf, LoopClock())  # type: ignore[arg-type]
        attempts = [made.open_attempt(issue(number=number), 1) for number in range(20)]
        for _ in range(900):
            for attempt in attempts:
                attempt("t")("stdout", "x" * 1_000)
        assert -logs.MAX_LINE_CHARS <= made.free_bytes <= logs.MAX_PART_BYTES
        shelf.fails = [Unavailable("away")] * 5
        running = asyncio.ensure_future(made.run())
        await until(lambda: made.free_bytes == logs.MAX_UNSENT_BYTES)
        for attempt in attempts:
            attempt("t")("stdout", "again")
            attempt.close()
        await until(lambda: made.free_bytes == logs.MAX_UNSENT_BYTES)
        running.cancel()
        return made

    run_virtually(scene())
    left_out = [line for line in shelf.lines() if line.stream == "noetl"]
    assert left_out
    assert (
        sum(int(line.line[1:].split()[0]) for line in left_out) + len(shelf.lines()) - len(left_out)
        == 20 * 901
    )


# ---- nobody waits for a log ----------------------------------------------------------------------------------------------


def test_a_part_is_sent_until_it_is_stored_less_often_while_nobody_takes_it() -> None:
    shelf = Shelf()
    shelf.fails = [Unavailable("away")] * 20

    async def scene() -> float:
        await send_logs(
            shelf,
            lambda made: made.open_attempt(issue(), 1)("t")("stdout", "hi"),
            lambda: bool(shelf.parts),
        )
        return asyncio.get_running_loop().time()

    assert 20 < run_virtually(scene()) < 60  # virtual seconds
    assert len(shelf.calls) == 21
    assert len({call[0].payload for call in shelf.calls}) == 1
    assert texts(shelf.lines()) == ["hi"]


def test_what_will_never_be_taken_is_not_sent_again() -> None:
    shelf = Shelf()
    shelf.fails = [InvalidInput("no")]
    made = run_virtually(
        send_logs(
            shelf,
            lambda made: made.open_attempt(issue(), 1)("t")("stdout", "hi"),
            lambda: bool(shelf.calls) and not shelf.fails,
        )
    )
    assert (made.free_bytes, shelf.parts) == (logs.MAX_UNSENT_BYTES, {})


def test_the_lines_of_a_short_step_go_with_the_exchange_that_reports_its_end() -> None:
    desk = LoggedDesk(issue())

    def does(call: Call) -> Any:
        call.log("stdout", "hi")

    run_virtually(working(make_worker(desk, does), lambda: bool(desk.events)))
    assert (desk.calls, len(desk.with_endings)) == ([], 1)
    assert texts(desk.lines()) == ["hi"]


def test_a_step_that_prints_nothing_sends_nothing() -> None:
    desk = LoggedDesk(issue())
    run_virtually(working(make_worker(desk), lambda: bool(desk.events)))
    assert (desk.calls, desk.with_endings) == ([], [])
    assert all(b"logs" not in msgspec.json.encode(request) for request in desk.requests)


def test_a_step_is_as_quick_and_as_well_without_anyone_who_takes_its_log() -> None:
    desk = LoggedDesk(issue())

    async def wait_for_ever(parts: tuple[StoredRef, ...]) -> None:
        await asyncio.Event().wait()

    desk.put_logs = wait_for_ever  # type: ignore[method-assign]
    exchange = desk.exchange

    async def exchange_without_logs(request: ExchangeRequest) -> ExchangeReply:
        return msgspec.structs.replace(
            await exchange(msgspec.structs.replace(request, logs=())), logged=not request.logs
        )

    desk.exchange = exchange_without_logs  # type: ignore[method-assign]

    async def does(call: Call) -> Any:
        for number in range(20):
            call.log("stdout", str(number))
            await asyncio.sleep(0.1)

    async def scene() -> float:
        await working(make_worker(desk, does), lambda: bool(desk.of(e.CommandCompleted)))
        return asyncio.get_running_loop().time()

    assert run_virtually(scene()) < 2.1 + logs.CLOSE_TIMEOUT_S  # virtual seconds
    assert desk.parts == {}


def test_lines_are_there_while_their_step_runs_and_nothing_is_lost_in_an_orderly_end() -> None:
    desk = LoggedDesk(issue())

    async def scene() -> None:
        async def does(call: Call) -> Any:
            call.log("stdout", "first")
            await until(lambda: texts(desk.lines()) == ["first"])
            call.log("stdout", "second")
            await asyncio.sleep(1_000)

        worker = make_worker(desk, does)
        task = asyncio.ensure_future(worker.run())
        await until(lambda: bool(desk.parts))
        await until(lambda: len(desk.lines()) == 2 or bool(worker._logs._open_attempts))
        worker.hand_back()
        await task

    run_virtually(scene())
    assert texts(desk.lines()) == ["first", "second"]


def test_the_log_of_a_command_that_is_given_up_is_sent_all_the_same() -> None:
    desk = LoggedDesk(issue("two"))
    desk.answer = lambda report: "stale"

    def does(call: Call) -> Any:
        call.log("stdout", call.identity.task)

    run_virtually(working(make_worker(desk, does), lambda: bool(desk.parts)))
    assert texts(desk.lines()) == ["a"]


def test_secrets_are_taken_out_before_a_line_is_cut() -> None:
    desk, secret = LoggedDesk(issue()), "correct-horse-battery"

    def does(call: Call) -> Any:
        call.log("stdout", f"the word is {secret}")
        call.log("stdout", "x" * (logs.MAX_LINE_CHARS - 10) + secret)

    worker = make_worker(desk, does)
    worker._env.redactor.register_secret("word", secret)
    run_virtually(working(worker, lambda: bool(desk.events)))
    plain, long = texts(desk.lines())
    assert plain == "the word is ***word***"
    assert long.startswith("x" * (logs.MAX_LINE_CHARS - 10) + "***word**")
    assert not any(secret[:6] in line for line in (plain, long))

"""One history: the stores, the nodes that come and go, the people who ask, and the faults that a seed has in store for them.

The real `Server` and `Worker` run on the memory twins, each through its own unreliable wires. In *liveness* mode the faults stop
at some moment, every node comes back, and everything must end within a bound; in *safety* mode they never stop and only what must
always hold is checked. `both` lets the seed choose.
"""

import asyncio
import dataclasses
import logging
import random
import re
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from random import Random
from typing import Any

import yaml

from noetl import faults as points
from noetl.bus.memory import BusMemory
from noetl.catalog.memory import CatalogMemory
from noetl.engine.inheriting import find_loops_with_failed_items
from noetl.engine.outcome import hash_outcome
from noetl.leases.memory import LeasesMemory
from noetl.log.memory import make_memory_stores
from noetl.log.stores import Stores
from noetl.log.tables import MemoryDatabase
from noetl.model.decisions import AddPart
from noetl.model.errors import Conflict, NoetlError, NotFound, Unavailable
from noetl.model.exchange import ExchangeReply, ExchangeRequest
from noetl.model.messages import Report
from noetl.playbook import plan as plans
from noetl.playbook import validation
from noetl.results.tiers.memory import ResultsMemory
from noetl.server.dispatch import playbooks as server_playbooks
from noetl.server.dispatch.requests import RepeatWish
from noetl.server.node import Server
from noetl.server.settings import ServerSettings
from noetl.shard_rows import make_shard_rows
from noetl.tools.noop import Noop
from noetl.tools.playbook import PlaybookTool
from noetl.tools.registry import Registry
from noetl.tools.wait import Wait
from noetl.worker import plans as worker_plans
from noetl.worker.plans import PlanCache
from noetl.worker.settings import WorkerSettings
from noetl.worker.spool import MemorySpool
from noetl.worker.worker import Worker
from tests.simulation.faulty import (
    BUSY,
    MAX_KILLS,
    MAX_PAUSES,
    START,
    Faults,
    Hints,
    Port,
    SimClock,
    Wire,
    crash_points,
    drive,
)
from tests.simulation.loop import Killed, Livelock, SimLoop, SimProcess
from tests.simulation.oracle import Oracle, Violation
from tests.simulation.tools import Simulated
from tests.simulation.workloads import Act, SimCase, cases

MODES = ("both", "liveness", "safety")
SHARDS = (1, 2, 4)
# Slower than in earnest: an idle server costs as much to simulate as a busy one.
PACE = {
    "shard_interval": 1.2, "inbox_interval": 1.3, "timer_interval": 0.9, "reaper_interval": 1.4, "projector_interval": 0.6,
    "row_interval": 1.0, "poll_interval": 1.5, "rows": 0,
}  # fmt: skip
ORDERS = ("process", "process", "any", "fifo")
BUSY_SECONDS = (0.002, 0.01, 0.05)
FAULTS_UNTIL = (4.0, 10.0, 25.0)  # seconds of a history with faults
AFTERWARDS = 150.0  # in liveness mode everything ends within this long of the last fault


@dataclass(frozen=True)
class History:
    """What is to be simulated; everything else follows from it."""

    seed: int
    mode: str = "both"
    faults: frozenset[str] | None = None
    only: frozenset[int] | None = None
    mutant: str | None = None


@dataclass
class Result:
    history: History
    violation: str | None
    rule: str | None
    trace: str
    events: int
    virtual: float
    kinds: frozenset[str]
    fired: Counter[str] = field(default_factory=Counter)
    reached: Counter[str] = field(default_factory=Counter)
    endings: Counter[str] = field(default_factory=Counter)
    story: list[str] = field(default_factory=list)


@dataclass
class SimNode:
    name: str
    kind: str
    clock: SimClock
    process: SimProcess | None = None
    body: Any = None
    boots: int = 0
    disk: Any = None


class SimWorld:
    def __init__(
        self, seed: int, faults: Faults, chosen: list[SimCase], *, calm: bool = False
    ) -> None:
        rng = self.rng = Random(f"{seed}:world")
        self.faults = faults
        order: Any = "fifo" if calm else rng.choice(ORDERS)
        self.loop = SimLoop(Random(f"{seed}:schedule"), order)
        self.clock = SimClock(self.loop)
        self.story: list[str] = []
        self.cases = chosen
        self.shards = 1 if calm else rng.choice(SHARDS)
        self.database = MemoryDatabase(make_shard_rows(self.shards), self.clock)
        self.stores = make_memory_stores(self.database)
        self.leases = LeasesMemory(self.database.shards, self.clock)
        self.results = ResultsMemory()
        self.bus = BusMemory()
        self.catalog = CatalogMemory()
        self.oracle = Oracle(self.stores, self.results, self.shards)
        self.wire = Wire(self.loop, faults, self.kill)
        self.wire.observe = self.oracle.observe
        self.kills = self.pauses = 0
        self.awake = 0.0  # the end of the last pause
        self.started: dict[tuple[int, int], str] = {}
        self.retried: dict[tuple[int, int], str] = {}
        self.errors: list[str] = []
        self.busy = 0  # people who have not got what they asked for yet
        self._looked, self._done = -1, False
        servers = 1 if calm else rng.choice((1, 2, 2, 3))
        workers = 1 if calm else rng.choice((1, 2, 2, 3))
        self.nodes = [
            SimNode(f"s{number}", "server", SimClock(self.loop)) for number in range(1, servers + 1)
        ]
        self.nodes += [
            SimNode(f"w{number}", "worker", SimClock(self.loop)) for number in range(1, workers + 1)
        ]
        self.cuts: dict[tuple[str, str], float] = {}
        blocked = sum(
            case.copies for case in chosen if case.blocks
        )  # places that one worker may have to keep
        self.slots = max(rng.choice((1, 2, 4, 8)), 1 + blocked)

    def say(self, text: str) -> None:
        self.story.append(f"{self.loop.time():9.3f}  {text}")
        self.oracle.trace.update(f"{self.loop.time():.6f} {text}".encode())

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def boot(self, node: SimNode) -> None:
        if node.process is not None and node.process.alive:
            return
        node.boots += 1
        process = node.process = SimProcess(f"{node.name}.{node.boots}")
        self.say(f"{process.name} starts")
        make = self._server if node.kind == "server" else self._worker
        self.loop.spawn(process, self._live(node, process, make), name=process.name)

    async def _live(
        self, node: SimNode, process: SimProcess, make: Callable[[SimNode, SimProcess], Any]
    ) -> None:
        body = node.body = make(node, process)
        try:
            await body.run()
            ending = "returned"
        except Exception as error:
            ending = repr(error)
        process.check()
        self.errors.append(f"{process.name} ended by itself: {ending}")
        self.say(self.errors[-1])
        self.loop.kill(process)
        self.loop.call_outside(1.0, self.boot, node)

    def _server(self, node: SimNode, process: SimProcess) -> Server:
        wire = self.wire
        settings = ServerSettings(name=node.name, address=node.name, shards=self.shards, **PACE)
        stores = {
            each.name: Port(wire, process, each.name, getattr(self.stores, each.name))
            for each in dataclasses.fields(Stores)
        }
        return Server(
            Stores(**stores),
            Port(wire, process, "leases", self.leases),
            Hints(wire, process, self.bus),
            Port(wire, process, "catalog", self.catalog),
            node.clock,
            settings,
        )

    def _worker(self, node: SimNode, process: SimProcess) -> Worker:
        if node.disk is None:
            node.disk = MemorySpool()
        channel = WorkerChannel(self, process, Random(f"{process.name}:{self.faults.seed}"))
        tools = [
            Simulated(process, node, self.loop.time, self.oracle, lambda: self.lose(process), kind)
            for kind in ("python", "spark")
        ]
        return Worker(
            channel,
            Port(self.wire, process, "results", self.results),
            Registry([*tools, Noop(), Wait(), PlaybookTool()]),
            node.clock,
            Disk(self, process, node.disk),
            WorkerSettings(worker_id=node.name, incarnation=process.name, slots=self.slots),
            plans=PlanCache(channel, 128, cached_load),
        )

    def kill(self, process: SimProcess, why: str) -> bool:
        node = next(node for node in self.nodes if node.name == process.name.partition(".")[0])
        if self.faults.quiet or self.kills >= MAX_KILLS or not process.alive:
            return False
        self.kills += 1
        self.say(f"{process.name} is killed {why}")
        self.loop.kill(process)
        self.loop.call_outside(self.rng.choice((0.05, 0.5, 3.0, 9.0)), self.boot, node)
        return True

    def lose(self, process: SimProcess) -> None:
        """A tool kills its worker, whether faults are on or not; it is started again at once."""
        node = next(node for node in self.nodes if node.name == process.name.partition(".")[0])
        self.say(f"{process.name} is killed by a tool")
        self.loop.kill(process)
        self.loop.call_outside(0.05, self.boot, node)

    def pause(self, process: SimProcess, why: str) -> None:
        if self.faults.quiet or self.pauses >= MAX_PAUSES or process.paused or not process.alive:
            return
        self.pauses += 1
        length = self.rng.choice((0.3, 3.0, 5.0, 7.0, 13.0))
        self.say(f"{process.name} is paused for {length} s {why}")
        self.loop.pause(process, length)
        self.awake = max(self.awake, self.loop.time() + length)

    # -- the timeline of faults ------------------------------------------------------------------------------------------

    def plan_faults(self, until: float) -> None:
        faults = self.faults
        for kind in (
            "kill.server",
            "kill.worker",
            "pause.server",
            "pause.worker",
            "net.cut",
            "clock.jump",
        ):
            rng = faults.rng(kind)
            for _ in range(faults.times(kind)):
                self.loop.call_outside(rng.random() * until, self._strike, kind)
        if faults.times("clock.skew"):
            rng = faults.rng("clock.skew")
            for node in self.nodes:
                node.clock.error = round(rng.choice((0, 1, -1, 60, -600, 600)) * 1e6)

    def _strike(self, kind: str) -> None:
        if self.faults.quiet:
            return
        rng = self.faults.rng(kind)
        self.faults.counts[kind] += 1
        what, _, whom = kind.partition(".")
        if what == "clock":
            node = rng.choice(self.nodes)
            jump = rng.choice((-3600, -5, 5, 3600))
            node.clock.error += round(jump * 1e6)
            self.say(f"the clock of {node.name} jumps by {jump} s")
            return
        if what == "net":
            worker = rng.choice([node for node in self.nodes if node.kind == "worker"])
            servers = [node for node in self.nodes if node.kind == "server"]
            cut = servers if rng.random() < 0.5 else [rng.choice(servers)]
            length = rng.choice((1.0, 5.0, 10.0, 15.0))
            for server in cut:
                self.cuts[worker.name, server.name] = self.loop.time() + length
            self.say(
                f"{worker.name} cannot reach {', '.join(server.name for server in cut)} for {length} s"
            )
            return
        nodes = [
            node
            for node in self.nodes
            if node.kind == whom and node.process is not None and node.process.alive
        ]
        if not nodes:
            return
        process = rng.choice(nodes).process
        assert process is not None
        if what == "kill":
            self.kill(process, "at random")
        else:
            self.pause(process, "at random")

    def calm_down(self) -> None:
        self.faults.quiet = True
        self.cuts.clear()
        self.say("no more faults")
        for node in self.nodes:
            self.boot(node)

    # -- the network ---------------------------------------------------------------------------------------------------

    def call(
        self,
        sender: SimProcess | None,
        to: SimNode,
        method: str,
        args: tuple[Any, ...],
        limit: float,
    ) -> "asyncio.Future[Any]":
        """One request over the network and its answer; each may be lost, late or doubled."""
        loop, faults, rng = self.loop, self.faults, self.faults.rng("net")
        future: asyncio.Future[Any] = loop.create_future()
        lost = Unavailable(f"no answer from {to.name}")

        def delay() -> float:
            return (
                rng.random() * rng.choice((0.05, 0.5, 5.0))
                if faults.hit("net.delay")
                else 0.001 * rng.random()
            )

        def cut() -> bool:
            name = "" if sender is None else sender.name.partition(".")[0]
            return loop.time() < self.cuts.get((name, to.name), -1.0)

        def arrive() -> None:
            process = to.process
            if process is None or not process.alive or to.body is None:
                loop.call_outside(delay(), give_up)
            elif not cut():
                loop.spawn(process, serve(process, to.body))

        async def serve(process: SimProcess, body: Any) -> None:
            mark = self.oracle.events
            try:
                answer = await getattr(body, method)(*args)
                error: Exception | None = None
            except Exception as raised:
                answer, error = None, raised
            process.check()
            if isinstance(answer, ExchangeReply):
                self.oracle.note_reply(args[0], answer)
                answer = (answer, mark, loop.time())
            if not faults.hit("net.lost_reply") and not cut():
                loop.call_outside(delay(), reply, answer, error)

        def reply(answer: Any, error: Exception | None) -> None:
            if future.done():
                return
            if sender is not None and faults.hit(BUSY):
                loop.pause(sender, faults.rng(BUSY).choice(BUSY_SECONDS))
            if error is None:
                future.set_result(answer)
            else:
                future.set_exception(error)

        def give_up() -> None:
            if not future.done():
                future.set_exception(lost)

        if self.wire.closed or (sender is not None and not sender.alive):
            raise Killed("the history is over")
        for _ in range(2 if faults.hit("net.double") else 1):
            if not faults.hit("net.lost_request"):
                loop.call_outside(delay(), arrive)
        loop.call_outside(limit, give_up)
        return future

    # -- people ----------------------------------------------------------------------------------------------------------

    async def ask(self, what: Callable[[Server], Any], tries: int = 1000) -> Any:
        """Repeat a request until some server answers it. People do not die here."""
        for number in range(tries):
            servers = [node for node in self.nodes if node.kind == "server"]
            node = self.rng.choice(servers)
            try:
                return await self.call(None, SimRequest(node, what), "answer", (), 5.0)  # type: ignore[arg-type]
            except (Conflict, NotFound):
                raise
            except NoetlError:
                await asyncio.sleep(min(0.2 * (number + 1), 2.0))
        raise Unavailable("nobody answers")

    async def person(self, number: int, copy: int, case: SimCase) -> None:
        """Starts an execution and does to it what the case says."""
        await asyncio.sleep(self.rng.random() * self.rng.choice((0.1, 1.0, 3.0)))
        key = f"start-{number}-{copy}"
        execution_id = await self.ask(
            lambda server: server.requests.start(case.path, payload=case.payload, start_key=key)
        )
        self.started[number, copy] = execution_id
        self.say(f"{case.name} is execution {execution_id}")
        began = self.loop.time()
        for act in case.acts:
            await asyncio.sleep(max(0.0, began + act.after - self.loop.time()))
            try:
                await self.ask(lambda server, act=act: self._act(server, execution_id, act, key))
            except Conflict:
                break  # it has ended already
        if case.retry:
            await self._retry(number, copy, execution_id)
        self.busy -= 1
        self._looked = -1

    async def _act(self, server: Server, execution_id: Any, act: Act, key: str) -> Any:
        request = f"{key}-{act.what}-{act.after}"
        match act.what:
            case "cancel":
                return await server.requests.cancel(execution_id, request)
            case "cancel_child":
                return await self._cancel_child(server, execution_id, request)
            case "pause":
                return await server.requests.pause(execution_id, request)
            case "resume":
                return await server.requests.resume(execution_id, request)
            case "signal":
                return await server.requests.signal(execution_id, act.name, request, act.payload)

    async def _cancel_child(self, server: Server, execution_id: Any, request: str) -> Any:
        """Not before there is one."""
        while not (children := family(self, [execution_id])):  # noqa: ASYNC110  # people look from time to time
            await asyncio.sleep(0.2)
        return await server.requests.cancel(children[0], request)

    async def _retry(self, number: int, copy: int, execution_id: Any) -> None:
        while not self.oracle.has_ended(execution_id):  # noqa: ASYNC110  # people look from time to time
            await asyncio.sleep(1.0)
        ended = self.oracle.states[execution_id]
        if ended.status == "completed" and not find_loops_with_failed_items(ended):
            return
        wish = RepeatWish("retry", only=self.cases[number].only)
        request = f"again-{number}-{copy}"
        retried = await self.ask(
            lambda server: server.requests.repeat(execution_id, wish, request, None)
        )
        self.retried[number, copy] = retried
        self.say(f"{execution_id} is retried as {retried}")

    async def follower(self) -> None:
        """Reads every shard by (shard, seq) all the time, as a live view would."""
        at = dict.fromkeys(range(self.shards), 0)
        while True:
            for shard in range(self.shards):
                for recorded in drive(self.stores.log.follow_shard(shard, at[shard], 50)):
                    at[shard] = recorded.seq
                    self.oracle.followed[shard].append((recorded.seq, recorded.event.key))
            await asyncio.sleep(0.4)

    # -- the run -----------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        for case in self.cases:
            for path, text in (*case.children, (case.path, case.text)):
                drive(self.catalog.register(path, text))
        for node in self.nodes:
            self.boot(node)
        for number, case in enumerate(self.cases):
            for copy in range(case.copies):
                self.busy += 1
                self.loop.spawn(None, self.person(number, copy, case))
        self.loop.spawn(None, self.follower())

    def is_done(self) -> bool:
        """Everyone has what they asked for and every execution has ended."""
        if self.busy or self.oracle.events == self._looked:
            return self._done
        self._looked = self.oracle.events
        self._done = self._look()
        return self._done

    def _look(self) -> bool:
        states = self.oracle.states
        asked = (*self.started.values(), *self.retried.values())
        return all(each in states for each in asked) and all(
            state.terminal for state in states.values()
        )

    def is_broken(self) -> bool:
        return self.oracle.error is not None

    def close(self) -> None:
        self.wire.closed = True
        for node in self.nodes:
            if node.process is not None:
                node.process.alive = False
        self.loop.dispose()


class WorkerChannel:
    """A worker's way to the servers: it stays with one while that one answers."""

    def __init__(self, world: SimWorld, process: SimProcess, rng: Random) -> None:
        self._world = world
        self._process = process
        self._rng = rng
        self._servers = [node for node in world.nodes if node.kind == "server"]
        self._last = rng.choice(self._servers)

    async def exchange(self, request: ExchangeRequest) -> ExchangeReply:
        reply, mark, sent = await self._call("exchange", request)
        for command in reply.commands:
            self._world.oracle.note_delivery(self._process.name, command, mark, sent)
        return reply

    async def fetch_playbook(self, content: str) -> str:
        return await self._call("fetch_playbook", content)

    async def list_manifest_parts(self, manifest: str) -> list[AddPart]:
        return await self._call("list_manifest_parts", manifest)

    async def _call(self, method: str, argument: Any) -> Any:
        self._process.check()
        node = self._last if self._rng.random() < 0.9 else self._rng.choice(self._servers)
        try:
            answer = await self._world.call(self._process, node, method, (argument,), 60.0)
        except BaseException:
            self._last = self._rng.choice(self._servers)
            raise
        self._last = node
        return answer


class Disk:
    """A worker's spool: slow, sometimes full, and it outlives the process."""

    def __init__(self, world: SimWorld, process: SimProcess, kept: MemorySpool) -> None:
        self._world = world
        self._process = process
        self._kept = kept

    @property
    def free_places(self) -> int:
        return self._kept.free_places

    async def load(self) -> list[Report]:
        return await self._kept.load()

    async def add(self, report: Report) -> None:
        await self._turn()
        if self._world.faults.hit("spool.full"):
            raise OSError("no space left on the simulated device")
        await self._kept.add(report)

    async def remove(self, report: Report) -> None:
        await self._turn()
        await self._kept.remove(report)

    async def _turn(self) -> None:
        self._process.check()
        await asyncio.sleep(0.001)
        self._process.check()


class SimRequest:
    """A request to a server that is a function of it: stands in for a node in `call`."""

    def __init__(self, node: SimNode, what: Callable[[Server], Any]) -> None:
        self._node = node
        self._what = what
        self.name = node.name

    @property
    def process(self) -> SimProcess | None:
        return self._node.process

    @property
    def body(self) -> "SimRequest | None":
        return None if self._node.body is None else self

    async def answer(self) -> Any:
        return await self._what(self._node.body)


# ---- one history from its seed -------------------------------------------------------------------------------------------


@contextmanager
def control_process(loop: SimLoop, seed: int) -> Iterator[None]:
    """Clocks, chance and identities come from the history; code that asks the machine gets the simulation's answer."""
    saved = (time.time, time.monotonic, time.time_ns, uuid.uuid4)
    chance = Random(f"{seed}:uuid")
    random.seed(seed)
    time.time = lambda: START / 1e6 + loop.time()
    time.time_ns = lambda: START * 1000 + round(loop.time() * 1e9)
    time.monotonic = loop.time
    uuid.uuid4 = lambda: uuid.UUID(int=chance.getrandbits(128))
    logger = logging.getLogger("noetl")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    load, compile_plan = server_playbooks.load_registered, server_playbooks.compile_plan
    server_playbooks.load_registered = cached_load
    server_playbooks.compile_plan = worker_plans.compile_plan = cached_plan
    try:
        yield
    finally:
        server_playbooks.load_registered = load
        server_playbooks.compile_plan = worker_plans.compile_plan = compile_plan
        time.time, time.monotonic, time.time_ns, uuid.uuid4 = saved
        logger.setLevel(level)
        points.install_fault_hook(None)


@lru_cache(2000)
def cached_load(text: str, *, file: str = "") -> Any:
    """Reading a playbook is a pure function of its text; the same few come back in every seed."""
    return validation.load_registered(text, file=file)


_plans: dict[str, Any] = {}


def cached_plan(playbook: Any, content: str) -> Any:
    found = _plans.get(content)
    if found is None:
        found = _plans[content] = plans.compile_plan(playbook, content)
    return found


def run(history: History, look_at: "Callable[[SimWorld], None] | None" = None) -> Result:
    """Run the history. `look_at` sees the world at its end."""
    seed = history.seed
    faults = Faults(seed, history.faults)
    chosen = [
        case
        for number, case in enumerate(cases(seed))
        if history.only is None or number in history.only
    ]
    rng = Random(f"{seed}:length")
    lively = history.mode == "liveness" or (history.mode == "both" and rng.random() < 0.85)
    until = rng.choice(FAULTS_UNTIL)
    world = SimWorld(seed, faults, chosen)
    violation: Violation | None = None
    with control_process(world.loop, seed):
        crash_points(world.loop, faults, world.kill, world.pause)
        try:
            world.begin()
            world.plan_faults(until)
            world.loop.run_until(until, lambda: world.is_broken() or world.is_done())
            if lively and not world.is_broken():
                world.calm_down()
                settle(world)
            world.oracle.at_end()
            if lively:
                world.oracle.when_quiet()
                compare(world)
        except Violation as found:
            violation = found
        except Livelock as found:
            violation = Violation("livelock", str(found))
        finally:
            world.close()
    if look_at is not None:
        look_at(world)
    return result_of(history, world, violation)


def settle(world: SimWorld) -> None:
    """Everything ends, and what follows from the end (projections, hints, leases) has a moment too."""
    world.loop.run_until(
        world.loop.time() + AFTERWARDS, lambda: world.is_broken() or world.is_done()
    )
    if world.is_broken():
        return
    if not world.is_done():
        raise Violation("liveness", describe_stuck(world))
    world.loop.run_until(max(world.loop.time(), world.awake) + 3.0, world.is_broken)
    for _ in range(5):  # a projector looks at a shard that it has not written to once in ten runs
        if not world.oracle.behind():
            return
        world.loop.run_until(world.loop.time() + 1.5, world.is_broken)


def describe_stuck(world: SimWorld) -> str:
    open_ones = [state for state in world.oracle.states.values() if not state.terminal]
    if not open_ones:
        return f"someone waits for an answer for {AFTERWARDS} s"
    state = open_ones[0]
    commands = {key: drive(world.stores.queue.find_status(key)) for key in state.commands}
    where = (
        f"{state.execution_id} ({state.path}) is {state.status} {AFTERWARDS} s after the last fault"
    )
    return f"{where}; commands {commands}, timers {len(state.timers)}"


def result_of(history: History, world: SimWorld, violation: Violation | None) -> Result:
    oracle = world.oracle
    oracle.trace.update(f"{world.loop.steps} {world.loop.time():.6f}".encode())
    endings = Counter(state.status for state in oracle.states.values())
    return Result(
        history, None if violation is None else str(violation), None if violation is None else violation.rule,
        oracle.trace.hexdigest(), oracle.events, world.loop.time(), world.faults.kinds, world.faults.counts,
        world.faults.reached, endings, world.story,
    )  # fmt: skip


# ---- the same work undisturbed -------------------------------------------------------------------------------------------

_undisturbed: dict[Any, Any] = {}


def run_undisturbed(case: SimCase) -> "Outcomes":
    key = (case.text, repr(case.payload), case.children, repr(case.acts), case.copies)
    found = _undisturbed.get(key)
    if found is None:
        found = _undisturbed[key] = _run_alone(case)
    return found


@dataclass(frozen=True)
class Outcomes:
    own: tuple[str, ...]
    children: tuple[str, ...]
    effects: frozenset[tuple[Any, ...]]
    calls: int


def prepare(history: History) -> None:
    """What a mutant is compared with must not be computed by the mutant."""
    for case in cases(history.seed):
        if case.settled:
            run_undisturbed(case)


def _run_alone(case: SimCase) -> Outcomes:
    world = SimWorld(0, Faults(0, frozenset()), [replace(case, retry=False)], calm=True)
    hook = points._hook
    with control_process(world.loop, 0):
        try:
            world.begin()
            world.loop.run_until(AFTERWARDS, lambda: world.is_broken() or world.is_done())
            if world.oracle.error is not None:
                raise Violation(f"undisturbed {case.name}", str(world.oracle.error))
            if not world.is_done():
                raise Violation(f"undisturbed {case.name}", describe_stuck(world))
        finally:
            world.close()
    points.install_fault_hook(hook)
    return outcomes(world, [world.started[0, copy] for copy in range(case.copies)])


def outcomes(world: SimWorld, own: list[str]) -> Outcomes:
    states = world.oracle.states
    below = family(world, own)
    effects = [
        effect for effect in world.oracle.effects if effect.identity.execution_id in (*own, *below)
    ]
    return Outcomes(
        tuple(hash_outcome(states[each]) for each in own),
        tuple(sorted(hash_outcome(states[each]) for each in below)),
        frozenset(
            (
                effect.identity.step,
                effect.identity.task,
                effect.identity.run,
                effect.identity.index,
                effect.value,
            )
            for effect in effects
        ),
        len({effect.key for effect in effects}),
    )


def family(world: SimWorld, own: list[str]) -> list[str]:
    """Children and theirs. A detached child says who asked for it in `by`."""
    found: list[str] = []
    wanted = set(own)
    for state in sorted(world.oracle.states.values(), key=lambda state: int(state.execution_id)):
        parent = (
            state.parent.execution_id
            if state.parent is not None
            else (state.by or "").removeprefix("execution:")
        )
        if parent in wanted:
            wanted.add(state.execution_id)
            found.append(state.execution_id)
    return found


def compare(world: SimWorld) -> None:
    """A settled case ends as it ends undisturbed, unless machines were lost too often for one of its commands."""
    known = {*world.started.values(), *world.retried.values()}
    for state in world.oracle.states.values():
        if state.by is None and state.parent is None and state.execution_id not in known:
            raise Violation(
                "started once",
                f"{state.execution_id} ({state.path}) was never asked for: a start was taken twice",
            )
    handled_by_error_arcs(world)
    for number, case in enumerate(world.cases):
        own = [world.started[number, copy] for copy in range(case.copies)]
        signals = sum(act.what == "signal" for act in case.acts)
        if any(world.oracle.signals[each] > signals for each in own):
            raise Violation("asked once", f"{case.name}: more signals than were sent")
        if case.expected is not None:
            as_expected(world, case, own[0])
        if not case.settled or any(
            is_disturbed(world, each) for each in (*own, *family(world, own))
        ):
            continue
        expected, found = run_undisturbed(case), outcomes(world, own)
        if (found.own, found.children) != (expected.own, expected.children):
            endings = [world.oracle.states[each].status for each in own]
            raise Violation(
                "same outcome", f"{case.name} ended {endings}, not as it ends undisturbed"
            )
        if not case.punctual:
            continue
        if found.effects != expected.effects:
            more, less = found.effects - expected.effects, expected.effects - found.effects
            raise Violation(
                "effects",
                f"{case.name}: {len(more)} effects too many {sorted(more, key=repr)[:3]}, {len(less)} missing",
            )
        if found.calls != expected.calls:
            raise Violation(
                "idempotency keys", f"{case.name}: {found.calls} keys, undisturbed {expected.calls}"
            )


MENTIONS_OUTCOME = re.compile(
    r"\b(output|outcome)\.(status|error)\b|\bevent\.name\b|(?<![.\w'])error\b"
)


def handled_by_error_arcs(world: SimWorld) -> None:
    """Every arc that was taken after a failure says in its guard that it handles one."""
    texts = {case.path: case.text for case in world.cases} | {
        path: text for case in world.cases for path, text in case.children
    }
    for execution_id, step, arcs in world.oracle.handled:
        workflow = yaml.safe_load(texts[world.oracle.states[execution_id].path])["workflow"]
        router = next(each for each in workflow if each["step"] == step)["next"]
        listed = (
            router["arcs"]
            if isinstance(router, dict)
            else router
            if isinstance(router, list)
            else [router]
        )
        for arc in arcs:
            guard = listed[arc].get("when") if isinstance(listed[arc], dict) else None
            if not isinstance(guard, str) or not MENTIONS_OUTCOME.search(guard):
                raise Violation(
                    "no green without handling",
                    f"{step} of {execution_id} failed, and the guard {guard!r} took it",
                )


def as_expected(world: SimWorld, case: SimCase, execution_id: str) -> None:
    """A cell of the failure matrix ends as its table says, unless machines were lost that the cell does not lose itself."""
    assert case.expected is not None
    state = world.oracle.states[execution_id]
    family_of = (execution_id, *family(world, [execution_id]))
    if not case.loses_workers and any(is_disturbed(world, each) for each in family_of):
        return
    found = (state.status, state.recovered)
    if found != (case.expected.status, case.expected.recovered):
        wanted = f"{case.expected.status}, {case.expected.recovered} recovered: {case.expected.why}"
        raise Violation(
            "failure matrix", f"{case.name} is {found[0]}, {found[1]} recovered, not {wanted}"
        )


def is_disturbed(world: SimWorld, execution_id: str) -> bool:
    return execution_id in world.oracle.dead or execution_id in world.oracle.machine_failures

"""What goes wrong, and when: the faults of a seed, and the unreliable ways between a process and everything outside it.

Each kind of fault has its own stream of chance and its own rate, both derived from the seed, so that taking one kind away
(`--faults`, shrinking) leaves the others as they were. A seed enables a random subset: quiet histories are explored too.

A call to a store is a message: it is on its way, takes effect at one instant outside the caller's process (the commit point), and
its answer is on its way back. The caller may die, pause or give up at any of these moments; what was sent takes effect anyway.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from random import Random
from typing import Any

from noetl import faults as points
from noetl.model.errors import OutcomeUnknown, StoreUnavailable
from noetl.model.ids import Micros
from tests.simulation.loop import Killed, SimLoop, SimProcess, current

START: Micros = 1_750_000_000_000_000  # the virtual clock begins here

BUSY = "busy.worker"  # it computes for some milliseconds: replies that come meanwhile are read in one turn of its event loop
RATES = (0.003, 0.01, 0.03, 0.1)
KINDS: dict[str, tuple[float, ...]] = {
    "store.delay": (0.02, 0.1, 0.3),
    "store.unavailable": RATES,
    "store.unknown": RATES,
    "store.late": RATES,
    "commit.kill_before": (0.003, 0.01, 0.03),
    "commit.kill_after": (0.003, 0.01, 0.03),
    "kill.server": (1, 2, 4),  # how often, over the whole history
    "kill.worker": (1, 2, 4),
    "pause.server": (1, 2, 4),
    "pause.worker": (1, 2, 4),
    "net.lost_request": RATES,
    "net.lost_reply": RATES,
    "net.double": RATES,
    "net.delay": (0.02, 0.1, 0.3),
    "net.cut": (1, 2, 4),
    "bus.drop": (0.1, 0.5, 1.0),
    "bus.double": (0.1, 0.5),
    "bus.delay": (0.1, 0.5),
    "results.unavailable": (0.003, 0.01, 0.03),
    "results.unknown": (0.003, 0.01, 0.03),
    "results.slow": (0.02, 0.1),
    "clock.skew": (1,),
    "clock.jump": (1, 3),
    "spool.full": (0.1, 0.5),
    BUSY: (0.1, 0.3),
    **{f"point.{name}": (0.01, 0.03, 0.1, 0.3) for name in points.FAULT_POINTS},
    **{f"pause.{name}": (0.01, 0.03, 0.1) for name in points.FAULT_POINTS},
}
MAX_KILLS = 10
MAX_PAUSES = 6

WRITES = frozenset(
    "append write_projections start_execution post_message accept_report claim_commands renew_leases expire_leases end_leases"
    " claim renew register release_shards leave_cluster put".split()
)


class Faults:
    """The faults of one history. `hit` is asked at every place where one could happen."""

    def __init__(self, seed: int, kinds: frozenset[str] | None = None) -> None:
        self.seed = seed
        self.kinds = swarm(seed) if kinds is None else kinds
        self.quiet = False
        self.counts: Counter[str] = Counter()
        self.reached: Counter[str] = Counter()
        self._rngs: dict[str, Random] = {}
        self._rates: dict[str, float] = {}
        for kind in self.kinds:
            rng = self._rngs[kind] = Random(f"{seed}:{kind}")
            self._rates[kind] = rng.choice(KINDS[kind])

    def hit(self, kind: str) -> bool:
        if self.quiet or kind not in self._rates:
            return False
        if self._rngs[kind].random() >= self._rates[kind]:
            return False
        self.counts[kind] += 1
        return True

    def times(self, kind: str) -> int:
        return int(self._rates.get(kind, 0))

    def rng(self, kind: str) -> Random:
        found = self._rngs.get(kind)
        if found is None:
            found = self._rngs[kind] = Random(f"{self.seed}:{kind}")
        return found


def swarm(seed: int) -> frozenset[str]:
    """One seed in eight is quiet; the others enable each family with one of three densities."""
    rng = Random(f"{seed}:swarm")
    if rng.random() < 0.08:
        return frozenset()
    density = rng.choice((0.1, 0.3, 0.6))
    families = [
        kind
        for kind in sorted(KINDS)
        if kind.partition(".")[2] not in points.FAULT_POINTS and kind != BUSY
    ]
    chosen = {kind for kind in families if rng.random() < density}
    if (
        Random(f"{seed}:{BUSY}:swarm").random() < density
    ):  # a stream of its own: the other faults of a seed stay as they were
        chosen.add(BUSY)
    # crash points are armed one, two or three at a time, so that rare windows are not hidden behind common ones
    if rng.random() < 0.6:
        armed = rng.sample(points.FAULT_POINTS, rng.choice((1, 1, 2, 3)))
        chosen |= {f"{rng.choice(('point', 'point', 'pause'))}.{name}" for name in armed}
    return frozenset(chosen)


class SimClock:
    """A node's wall clock: virtual time, and how wrong it is."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self.error: Micros = 0

    def now(self) -> Micros:
        return START + self.error + round(self._loop.time() * 1e6)


class Wire:
    """Calls from processes to stores. `observe` sees each effect at its commit point, in order."""

    def __init__(
        self, loop: SimLoop, faults: Faults, kill: Callable[[SimProcess, str], bool]
    ) -> None:
        self.loop = loop
        self.faults = faults
        self.closed = False
        self._kill = kill
        self._delays = faults.rng("store.delays")
        self.observe: Callable[[str, tuple[Any, ...], Any], None] = lambda what, args, result: None
        self.calls: Counter[str] = Counter()

    def transact(
        self, process: SimProcess, store: str, method: str, call: Callable[..., Coroutine[Any, Any, Any]], args: tuple[Any, ...],
        keywords: dict[str, Any],
    ) -> Awaitable[Any]:  # fmt: skip
        process.check()
        if self.closed:
            raise Killed("the history is over")
        faults, loop = self.faults, self.loop
        future: asyncio.Future[Any] = loop.create_future()
        self.calls[f"{store}.{method}"] += 1
        writes = method in WRITES
        family = "results" if store == "results" else "store"
        slow = faults.hit("results.slow" if family == "results" else "store.delay")
        there = self._delay(slow)
        if faults.hit(f"{family}.unavailable"):
            loop.call_outside(
                there, _fail, future, StoreUnavailable(f"{store}.{method}: simulated")
            )
            return future
        unknown = writes and faults.hit(f"{family}.unknown")
        if writes and family == "store" and faults.hit("store.late"):
            # the caller gives up while the call is still under way: it takes effect afterwards, perhaps after the repeat
            loop.call_outside(
                there,
                _fail,
                future,
                OutcomeUnknown(f"{store}.{method}: simulated, still under way"),
            )
            there += self._delays.choice((0.0, 0.01, 0.1, 1.0, 4.0))
            unknown = False
        loop.call_outside(
            there, self._commit, process, store, method, call, args, keywords, future, unknown
        )
        return future

    def _delay(self, slow: bool) -> float:
        if slow:
            return self._delays.choice((0.01, 0.05, 0.2, 1.0, 3.0)) * self._delays.random()
        return 0.0005 * self._delays.random()

    def _commit(
        self, process: SimProcess, store: str, method: str, call: Callable[..., Coroutine[Any, Any, Any]], args: tuple[Any, ...],
        keywords: dict[str, Any], future: "asyncio.Future[Any]", unknown: bool,
    ) -> None:  # fmt: skip
        if self.closed:
            return
        faults = self.faults
        writes = method in WRITES
        if not process.alive and self._delays.random() < 0.5:
            return  # the connection broke before the call arrived
        if (
            writes
            and process.alive
            and faults.hit("commit.kill_before")
            and self._kill(process, f"before {store}.{method}")
        ):
            return
        error: Exception | None = None
        result: Any = None
        try:
            result = drive(call(*args, **keywords))
        except Exception as raised:  # refusals of the store are answers too
            error = raised
        if error is None:
            self.observe(f"{store}.{method}", args, result)
        if (
            writes
            and process.alive
            and faults.hit("commit.kill_after")
            and self._kill(process, f"after {store}.{method}")
        ):
            return
        back = self._delay(faults.hit("store.delay"))
        if unknown:
            self.loop.call_outside(
                back,
                _fail,
                future,
                OutcomeUnknown(f"{store}.{method}: simulated, the answer was lost"),
            )
        elif error is not None:
            self.loop.call_outside(back, _fail, future, error)
        else:
            self.loop.call_outside(back, _give, future, result)


def drive(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a store's method to its end at one instant. The twins do not wait inside a transaction."""
    try:
        coroutine.send(None)
    except StopIteration as ended:
        return ended.value
    coroutine.close()
    raise RuntimeError(f"{coroutine!r} waits inside its transaction")


def _give(future: "asyncio.Future[Any]", result: Any) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: "asyncio.Future[Any]", error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


class Port:
    """One process's view of one store: the same methods, over the wire."""

    def __init__(self, wire: Wire, process: SimProcess, store: str, inner: Any) -> None:
        self._wire = wire
        self._process = process
        self._store = store
        self._inner = inner

    def __getattr__(self, method: str) -> Any:
        if method.startswith("_"):
            raise AttributeError(method)
        inner, wire, process, store = self._inner, self._wire, self._process, self._store

        async def call(*args: Any, **keywords: Any) -> Any:
            # looked up at each call: a mutant may have replaced it
            return await wire.transact(
                process, store, method, getattr(inner, method), args, keywords
            )

        self.__dict__[method] = call
        return call


class Hints:
    """One process's view of the bus: hints that may be lost, doubled or late."""

    def __init__(self, wire: Wire, process: SimProcess, inner: Any) -> None:
        self._wire = wire
        self._process = process
        self._inner = inner

    async def publish(self, subject: str) -> None:
        self._process.check()
        wire, faults = self._wire, self._wire.faults
        if wire.closed or faults.hit("bus.drop"):
            return
        late = faults.rng("bus.late")
        for _ in range(2 if faults.hit("bus.double") else 1):
            delay = (
                late.random() * late.choice((0.05, 1.0, 10.0))
                if faults.hit("bus.delay")
                else 0.0005 * late.random()
            )
            wire.loop.call_outside(delay, self._deliver, subject)

    def _deliver(self, subject: str) -> None:
        if not self._wire.closed:
            drive(self._inner.publish(subject))

    def subscribe(self, *subjects: str) -> AsyncIterator[str]:
        self._process.check()
        stream: AsyncIterator[str] = self._inner.subscribe(*subjects)
        return stream


def crash_points(
    loop: SimLoop,
    faults: Faults,
    kill: Callable[[SimProcess, str], bool],
    pause: Callable[[SimProcess, str], None],
) -> None:
    """Arm the named points: a process that reaches one may die there, or stop for longer than its lease."""

    def hook(name: str) -> None:
        process = current()
        if process is None:
            return
        faults.reached[name] += 1
        if not process.alive:
            raise Killed(name)
        if faults.hit(f"pause.{name}"):
            pause(process, f"at {name}")
        if faults.hit(f"point.{name}") and kill(process, f"at {name}"):
            raise Killed(name)

    points.install_fault_hook(hook)

"""Refuses starts of executions of tenants that use as much as their quotas allow.

Only starts are refused: accepted executions run to their end, with their children and retries. A
server counts at most once in `USAGE_TTL_S`, over indexes and kept sums, and adds what it has
accepted since. A server does not know what other servers accept meanwhile, so a quota may be
exceeded by that.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from msgspec import Struct, field

from noetl.accounts.tenants import TenantQuotas, TenantStore
from noetl.caches import LruCache
from noetl.log.tenant_usage.port import NO_BOUND, TenantUsage, UsageMeter
from noetl.model.errors import QuotaExceeded
from noetl.model.ids import ExecutionId, Tenant

QUOTAS_TTL_S = 2.0  # seconds that quotas are used after they were read
USAGE_TTL_S = 1.0  # seconds that the usage is used after it was measured, while there is room
MIN_RECOUNT_S = 0.1  # seconds between two measurements while a quota is used up
MAX_UNSEEN_S = 60.0  # seconds in which an accepted execution gets its row
MAX_METERED_TENANTS = 1_000
NEVER = float("-inf")

ADVICE = {
    "running": "wait until executions end, or cancel some",
    "queued": "wait until workers have taken commands, or start more workers",
    "bytes": "delete or shorten what is stored: output.ttl, NOETL_RETENTION_DAYS",
}
NOUNS = {
    "running": "executions that have not ended",
    "queued": "commands that wait for a worker",
    "bytes": "bytes of stored results",
}


class MeteredTenant(Struct, eq=False):
    """What a server knows of the quotas and the usage of a tenant."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    name: str = ""
    quotas: TenantQuotas = TenantQuotas()
    quotas_read_at: float = NEVER
    usage: TenantUsage = TenantUsage()
    measured_at: float = NEVER
    # accepted executions that may have no row yet, and when they were accepted
    started: dict[ExecutionId, float] = field(default_factory=dict)
    counted: frozenset[ExecutionId] = frozenset()  # those of them that the usage contains

    def count_running(self) -> int:
        return self.usage.running + sum(each not in self.counted for each in self.started)

    def find_problem(self) -> QuotaExceeded | None:
        """The error of the first quota that leaves no room for one more execution."""
        figures = {
            "running": (self.count_running(), self.quotas.running),
            "queued": (self.usage.queued, self.quotas.queued),
            "bytes": (self.usage.bytes, self.quotas.bytes),
        }
        for quota, (figure, limit) in figures.items():
            if limit is not None and figure >= limit:
                return _make_error(self.name, quota, figure, limit)
        return None


class QuotaGuard:
    def __init__(self, tenants: TenantStore, meter: UsageMeter) -> None:
        self._tenants = tenants
        self._meter = meter
        self._metered: LruCache[Tenant, MeteredTenant] = LruCache(MAX_METERED_TENANTS)

    @asynccontextmanager
    async def admit_start(self, tenant: Tenant, execution_id: ExecutionId) -> AsyncIterator[None]:
        """Count an execution that is started inside the context. Raises `QuotaExceeded`."""
        metered = await self._read_metered(tenant)
        if not metered.quotas.has_any:
            yield
            return
        await self._check_room(tenant, metered)
        metered.started[execution_id] = _read_loop_time()
        try:
            yield
        except BaseException:
            metered.started.pop(execution_id, None)
            raise

    async def check_room(self, tenant: Tenant) -> None:
        """Raise `QuotaExceeded` if there is no room for one more execution."""
        metered = await self._read_metered(tenant)
        if metered.quotas.has_any:
            await self._check_room(tenant, metered)

    def forget_start(self, tenant: Tenant, execution_id: ExecutionId) -> None:
        """Do not count an execution that was not started after all: its key was known."""
        metered = self._metered.peek(tenant)
        if metered is not None:
            metered.started.pop(execution_id, None)

    def forget_quotas(self, tenant: Tenant) -> None:
        """Read the quotas again when they are needed next."""
        metered = self._metered.peek(tenant)
        if metered is not None:
            metered.quotas_read_at = NEVER

    async def _read_metered(self, tenant: Tenant) -> MeteredTenant:
        metered = self._metered.get(tenant)
        if metered is None:
            metered = MeteredTenant()
            self._metered.put(tenant, metered)
        now = _read_loop_time()
        if now - metered.quotas_read_at >= QUOTAS_TTL_S:
            stored = await self._tenants.find_tenant(tenant)
            metered.name = str(tenant) if stored is None else stored.name
            metered.quotas = TenantQuotas() if stored is None else stored.quotas
            metered.quotas_read_at = now
        return metered

    async def _check_room(self, tenant: Tenant, metered: MeteredTenant) -> None:
        await self._measure(tenant, metered, USAGE_TTL_S)
        if metered.find_problem() is not None:
            await self._measure(tenant, metered, MIN_RECOUNT_S)
        problem = metered.find_problem()
        if problem is not None:
            raise problem

    async def _measure(self, tenant: Tenant, metered: MeteredTenant, max_age_s: float) -> None:
        """Measure the usage, unless it was measured recently. Callers at the same time share it."""
        async with metered.lock:
            now = _read_loop_time()
            if now - metered.measured_at < max_age_s:
                return
            asked = [each for each, at in metered.started.items() if now - at < MAX_UNSEEN_S]
            quotas = metered.quotas
            usage = await self._meter.measure_usage(
                tenant,
                asked,
                NO_BOUND if quotas.running is None else quotas.running,
                NO_BOUND if quotas.queued is None else quotas.queued,
                sums_bytes=False,
            )
            seen = set(asked).difference(usage.unseen)
            metered.started = {
                each: at
                for each, at in metered.started.items()
                if each not in seen and now - at < MAX_UNSEEN_S
            }
            metered.usage, metered.counted = usage, frozenset(usage.unseen)
            metered.measured_at = now


def _make_error(name: str, quota: str, figure: int, limit: int) -> QuotaExceeded:
    return QuotaExceeded(
        f"the quota `{quota}` of tenant {name} is used up: {figure} {NOUNS[quota]}, "
        f"the limit is {limit}",
        hint=f"{ADVICE[quota]}; an administrator of the installation may raise it: "
        f"noetl tenant quota set {name} --{quota} N",
    )


def _read_loop_time() -> float:
    return asyncio.get_running_loop().time()

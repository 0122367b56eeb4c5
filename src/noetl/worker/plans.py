"""Plans of playbooks by content hash: fetched once, checked against it, compiled and cached."""

import asyncio
from collections.abc import Callable

from noetl.backoff import Backoff
from noetl.caches import LruCache
from noetl.model.errors import Failure, NotFound, Unavailable
from noetl.pipeline.failures import TaskFailed
from noetl.playbook.model import Playbook
from noetl.playbook.plan import Plan, compile_plan
from noetl.playbook.validation import PlaybookInvalid, load_registered, source_hash
from noetl.worker.channel import Channel

MIN_FETCH_DELAY_S, MAX_FETCH_DELAY_S = 0.05, 1.0  # seconds between two tries


class PlanCache:
    """A cache of the `kept` most recently used plans."""

    def __init__(
        self,
        channel: Channel,
        kept: int,
        load: Callable[[str], Playbook] = load_registered,
    ) -> None:
        self._channel = channel
        self._load = load
        self._plans: LruCache[str, Plan] = LruCache(kept)
        self._loading: dict[str, asyncio.Lock] = {}  # by content hash, of plans that are fetched

    async def load_plan(self, content: str) -> Plan:
        """The plan. Raises Failing if there is no such playbook. Waits while no server answers."""
        plan = self._plans.get(content)
        if plan is None:
            plan = await self._load_once(content)
        return plan

    async def _load_once(self, content: str) -> Plan:
        """Fetch and compile the plan. Commands that need it at the same time wait for the first.

        A lock, not a shared task: if the first is cancelled, the next one fetches.
        """
        async with self._loading.setdefault(content, asyncio.Lock()):
            plan = self._plans.get(content)
            if plan is None:
                try:
                    text = await self._fetch_text(content)
                    plan = self._compile_text(content, text)
                    self._plans.put(content, plan)
                finally:
                    self._loading.pop(content, None)
            return plan

    async def _fetch_text(self, content: str) -> str:
        backoff = Backoff(MIN_FETCH_DELAY_S, MAX_FETCH_DELAY_S)
        while True:
            try:
                return await self._channel.fetch_playbook(content)
            except NotFound as error:
                raise TaskFailed(_unusable_playbook(content, "no server has it")) from error
            except Unavailable:  # the lease bounds the wait
                await asyncio.sleep(backoff.delay)
                backoff.count_failure()

    def _compile_text(self, content: str, text: str) -> Plan:
        text_hash = source_hash(text)
        if text_hash != content:
            raise TaskFailed(_unusable_playbook(content, f"what was sent has the hash {text_hash}"))
        try:
            return compile_plan(self._load(text), content)
        except PlaybookInvalid as error:
            raise TaskFailed(_unusable_playbook(content, str(error))) from error


def _unusable_playbook(content: str, why: str) -> Failure:
    return Failure(
        code="PLAYBOOK_UNUSABLE",
        kind="config",
        message=f"playbook {content[:12]} cannot be run: {why}"[:1_000],
    )

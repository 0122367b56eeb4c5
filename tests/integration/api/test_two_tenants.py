"""Two tenants do things and look at things in any order: no canary of one reaches the other.

The machine asks every route that reads, with ids of both tenants, as a user and as a worker.
"""

import asyncio
import json
import re
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from noetl.model.errors import NoetlError
from noetl.model.exchange import ExchangeRequest
from noetl.model.ids import RefId, Tenant
from tests.integration.api.api_server import ApiServer
from tests.integration.api.test_tenants import fill_path, list_paths
from tests.integration.api.two_tenants import NAMES, TenantUser, open_two_tenants, read_some

T = TypeVar("T")
EXECUTIONS_OF = re.compile(r"\{execution_id\}")
LISTS = (
    "/api/executions",
    "/api/executions/counts",
    "/api/catalog",
    "/api/credentials",
    "/api/hooks",
    "/api/schedules",
    "/api/state",
    "/api/queue",
    "/api/workers",
    "/api/pools",
    "/api/tokens",
    "/api/session",
    "/api/usage",
    "/api/executions/stream",
)
SIDES = st.sampled_from(NAMES)
NUMBERS = st.integers(0, 10_000)
MAX_EXECUTIONS = 6  # that one example runs, because each takes a third of a second


class TwoTenants:
    """A server with two tenants in a thread of its own, which machines share."""

    here: ApiServer
    users: dict[str, TenantUser]
    reads: list[str]

    def open(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever)
        self._thread.start()
        self._stack = AsyncExitStack()
        self._folder = TemporaryDirectory()
        self.here, self.users = self.run(
            self._stack.enter_async_context(open_two_tenants(Path(self._folder.name)))
        )
        for user in self.users.values():
            self.run(user.fill())
        self.reads = [path for method, path in list_paths(self.here.node) if method == "GET"]

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        self.run(self._stack.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._folder.cleanup()

    def get_others(self, side: str) -> list[TenantUser]:
        return [user for name, user in self.users.items() if name != side]


SHARED = TwoTenants()


class TenantMachine(RuleBasedStateMachine):
    """`seen` are the executions of both sides."""

    @initialize()
    def begin(self) -> None:
        self.seen = {name: [user.ids["execution_id"]] for name, user in SHARED.users.items()}

    def check(self, side: str, text: str, asked: str) -> None:
        for other in SHARED.get_others(side):
            assert other.canary not in text, f"{side} asked {asked} and saw what is {other.name}'s"

    def ask(self, side: str, method: str, path: str, **more: Any) -> Any:
        user = SHARED.users[side]
        answer = SHARED.run(read_some(user.http, method, path, **more))
        assert answer.status_code < 500, (method, path, answer.text)
        self.check(side, answer.text, f"{method} {path}")
        return answer

    # -- changes --

    @precondition(lambda self: sum(map(len, self.seen.values())) < MAX_EXECUTIONS)
    @rule(side=SIDES)
    def run_execution(self, side: str) -> None:
        self.seen[side].append(SHARED.run(SHARED.users[side].run()))

    @rule(side=SIDES, number=NUMBERS)
    def start_with_the_same_key(self, side: str, number: int) -> None:
        started = self.ask(
            side,
            "POST",
            "/api/execute",
            json={"path": "tests/shared"},
            headers={"Idempotency-Key": f"k{number % 3}"},
        )
        execution_id = str(started.json()["execution_id"])
        others = [each for name in NAMES if name != side for each in self.seen[name]]
        assert execution_id not in others
        self.seen[side].append(execution_id)

    @rule(side=SIDES)
    def write_state_and_credential(self, side: str) -> None:
        canary = SHARED.users[side].canary
        self.ask(side, "PUT", "/api/state/value/hand/tests/shared", json={"value": canary})
        secret = {"name": "shared", "kind": "generic", "data": {"secret": canary}}
        self.ask(side, "POST", "/api/credentials", json=secret)

    @rule(side=SIDES, of=SIDES, number=NUMBERS, how=st.sampled_from(("cancel", "pause", "rerun")))
    def change_an_execution(self, side: str, of: str, number: int, how: str) -> None:
        execution_id = self.seen[of][number % len(self.seen[of])]
        answer = self.ask(side, "POST", f"/api/executions/{execution_id}/{how}", json={})
        if side != of:
            assert answer.status_code == 404
        elif how == "rerun" and answer.status_code == 202:
            self.seen[side].append(str(answer.json()["execution_id"]))

    # -- looks --

    @rule(side=SIDES, of=SIDES, number=NUMBERS)
    def read_any_route(self, side: str, of: str, number: int) -> None:
        """A route with a path parameter, with ids of one of the two."""
        path = SHARED.reads[number % len(SHARED.reads)]
        owner = SHARED.users[of]
        executions = self.seen[of]
        ids = {**owner.ids, "execution_id": executions[number % len(executions)]}
        ids["step"] = ("plan", "each", "end")[number % 3]
        answer = self.ask(side, "GET", fill_path(path, ids), params={"older": "1"})
        is_own_thing = EXECUTIONS_OF.search(path) is not None and side != of
        if is_own_thing and path.startswith("/api/executions/"):
            assert answer.status_code in (404, 422), (path, answer.status_code)

    @rule(side=SIDES, path=st.sampled_from(LISTS))
    def read_a_list(self, side: str, path: str) -> None:
        self.ask(side, "GET", path)

    @rule(side=SIDES, of=SIDES, number=NUMBERS)
    def search_for_the_canary(self, side: str, of: str, number: int) -> None:
        canary = SHARED.users[of].canary
        executions = self.seen[of]
        execution_id = executions[number % len(executions)]
        for path in (
            "/api/executions?q=" + canary,
            f"/api/executions/{execution_id}/logs/search?q={canary}",
            f"/api/executions/{execution_id}/steps/each/items?status=all&q={canary}",
        ):
            user = SHARED.users[side]
            answer = SHARED.run(read_some(user.http, "GET", path))
            assert answer.status_code < 500
            if side != of:
                found = answer.text.replace(f'"{canary}"', "").replace(f"q={canary}", "")
                assert canary not in found or answer.status_code in (404, 422), path

    @rule(side=SIDES, number=NUMBERS)
    def work_as_a_worker(self, side: str, number: int) -> None:
        """A worker of this side asks for commands, payloads, manifests, playbooks and secrets."""
        user = SHARED.users[side]
        database: Any = SHARED.here.node.ports.stores.log
        tables = database._db
        tenant = Tenant(2 + NAMES.index(side))
        SHARED.run(self._ask_as_worker(user, tables, tenant, number))

    async def _ask_as_worker(
        self, user: TenantUser, tables: Any, tenant: Tenant, number: int
    ) -> None:
        # A process of its own: commands that it takes are given back at once.
        request = ExchangeRequest(worker="probe", incarnation=str(number), free=2)
        reply = await user.channel.exchange(request)
        assert all(command.tenant == tenant for command in reply.commands)
        await SHARED.here.node.ports.stores.queue.end_leases(request.holder, tenant)
        blobs = list(tables.blobs)
        key = blobs[number % len(blobs)]
        payload = await user.channel.payload(RefId(key.ref_id), key.uri)
        self.check(user.name, (payload or b"").decode("utf-8", "replace"), key.uri)
        is_ours = tables.find_tenant(key.uri.split("/")[3]) == tenant
        assert is_ours or payload is None
        names = list(tables.manifests)
        manifest = names[number % len(names)]
        parts = await user.channel.list_manifest_parts(manifest)
        assert not parts or tables.manifest_tenants[manifest] == tenant
        for other in SHARED.get_others(user.name):
            try:
                text = await user.channel.fetch_playbook(other.ids["hash"])
            except NoetlError as error:
                text = str(error)
            self.check(user.name, text, "a playbook")
        secret = await user.channel.read_credential("shared")
        self.check(user.name, json.dumps(secret), "a credential")


def run_machine(max_examples: int, steps: int) -> None:
    SHARED.open()
    try:
        run_state_machine_as_test(
            TenantMachine,
            settings=settings(
                max_examples=max_examples,
                stateful_step_count=steps,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
    finally:
        SHARED.close()


def test_no_canary_of_a_tenant_reaches_the_other() -> None:
    run_machine(max_examples=5, steps=15)


@pytest.mark.long
@pytest.mark.parametrize("piece", range(20))
def test_no_canary_of_a_tenant_reaches_the_other_for_long(piece: int) -> None:
    """In pieces, each with a server of its own and other choices."""
    run_machine(max_examples=12, steps=40)

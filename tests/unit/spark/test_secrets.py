"""Secrets in Spark's tasks: asked for, kept in memory, hidden in rows and prints."""

import asyncio
import io
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from noetl.model.ids import ExecutionId
from noetl.pipeline.failures import TaskFailed
from noetl.pipeline.secrets.keychain import Keychain, KeychainLookup, SecretHandle
from noetl.pipeline.secrets.redaction import Redactor
from noetl.playbook.model import KeychainEntry
from noetl.spark.step.tickets import issue_ticket
from noetl.spark.tasks.secrets import RedactedStdout, TicketKeychain, make_secret_answerer
from noetl.tools.credentials.port import MemoryCredentials
from noetl.tools.port import Call, CallIdentity

ENTRIES = [
    KeychainEntry(name="api", kind="bearer", credential="tokens"),
    KeychainEntry(
        name="fixed", kind="static", map={"host": "example", "token": "{{ keychain.api.token }}"}
    ),
    KeychainEntry(name="lost", kind="credential", credential="nobodys"),
]
TOKEN = "canary-11d0-77"


class CountedCredentials(MemoryCredentials):
    def __init__(self) -> None:
        super().__init__(
            {"tokens": {"token": TOKEN}, "pg": {"user": "u", "password": "tiger-lily"}}
        )
        self.asked: Counter[str] = Counter()

    async def get(self, name: str) -> dict[str, Any]:
        self.asked[name] += 1
        return await super().get(name)


def in_a_task(use: Callable[[TicketKeychain], Awaitable[None]]) -> Counter[str]:
    """With the keychain of a task; what its worker was asked for."""
    credentials = CountedCredentials()
    ours = Keychain(ENTRIES, credentials, step="each")
    call = Call(
        config={}, input={}, key="k", identity=CallIdentity(ExecutionId("1"), "each", "loop"),
        secret=ours.resolve_guarded, credential=ours.resolve_entry,
    )  # fmt: skip

    async def use_ticket() -> None:
        async with issue_ticket(make_secret_answerer(call)) as ticket:
            await use(TicketKeychain(ticket, ENTRIES, None, Redactor(), "each"))

    asyncio.run(use_ticket())
    return credentials.asked


def test_entries_credentials_and_handles_are_those_of_the_worker() -> None:
    async def use(chain: TicketKeychain) -> None:
        assert (await chain.resolve_auth("api"))["token"] == TOKEN
        assert await chain.resolve_auth("pg") == {"user": "u", "password": "tiger-lily"}
        await chain.load(KeychainLookup("fixed"))
        assert chain.read_member("fixed") == {"host": "example", "token": TOKEN}
        await chain.load(SecretHandle("pg", None))
        assert chain.get_secret("pg", None)["user"] == "u"
        assert (
            chain.redactor.redact_text(f"{TOKEN} tiger-lily example")
            == "***api.token*** ***pg.password*** example"
        )

    in_a_task(use)


def test_items_side_by_side_ask_once() -> None:
    async def use(chain: TicketKeychain) -> None:
        await asyncio.gather(*(chain.resolve_auth("pg") for _ in range(20)))

    assert in_a_task(use) == {"pg": 1}


@pytest.mark.parametrize("name", ["lost", "nobodys"])
def test_what_is_missing_is_a_failure_of_the_item(name: str) -> None:
    async def use(chain: TicketKeychain) -> None:
        with pytest.raises(TaskFailed) as failing:
            await chain.resolve_auth(name)
        assert failing.value.failure.code == "CREDENTIAL_MISSING"
        assert "there is no credential 'nobodys'" in failing.value.failure.message

    in_a_task(use)


def test_a_worker_that_is_gone_is_a_failure_that_may_be_tried_again() -> None:
    chain = TicketKeychain(f"127.0.0.1:1:{'A' * 43}=", ENTRIES, None, Redactor(), "each")
    with pytest.raises(TaskFailed) as failing:
        asyncio.run(chain.resolve_auth("pg"))
    assert (failing.value.failure.code, failing.value.failure.retryable) == (
        "CREDENTIAL_UNAVAILABLE",
        True,
    )


def test_prints_hide_what_the_task_knows() -> None:
    redactor, out = Redactor(), io.StringIO()
    redactor.register_credential("api", {"token": TOKEN})
    print("the token is", TOKEN, file=RedactedStdout(out, redactor))
    assert out.getvalue() == "the token is ***api.token***\n"

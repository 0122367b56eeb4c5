"""The whole stack for a file of tests: an embedded Postgres, one server, two workers, each a process."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import httpx
import pytest

from tests.play import workflow
from tests.stack import NoetlCommand, Stack, run_stack, temporary_home
from tests.waiting import HANG_LIMIT_S, until


@dataclass(frozen=True)
class StackClient:
    """Asks the server of a stack for executions, and waits for what they do."""

    noetl: NoetlCommand
    http: httpx.Client

    def register(self, steps: str, path: str | None = None, **document: Any) -> str:
        """Its path: one of its own unless it is given."""
        digest = sha256(repr((steps, document)).encode()).hexdigest()
        path = path or f"test/p{digest[:12]}"  # digits alone would be a number in YAML
        text = workflow(
            steps, **{"metadata": {"name": path.rpartition("/")[2], "path": path}, **document}
        )
        answer = self.http.post("/api/catalog/register", json={"content": text})
        assert answer.is_success, answer.text
        return path

    def start(self, path: str, **payload: Any) -> str:
        answer = self.http.post("/api/execute", json={"path": path, "payload": payload})
        assert answer.status_code == 202, answer.text
        return str(answer.json()["execution_id"])

    def run(
        self, steps: str, payload: dict[str, Any] | None = None, **document: Any
    ) -> dict[str, Any]:
        """To its end."""
        return self.wait_for_end(self.start(self.register(steps, **document), **(payload or {})))

    def get(self, path: str, **params: Any) -> Any:
        answer = self.http.get(path, params=params)
        assert answer.is_success, answer.text
        return answer.json()

    def ask(self, execution: str, what: str, body: Any = None) -> Any:
        answer = self.http.post(f"/api/executions/{execution}/{what}", json=body)
        assert answer.is_success, answer.text
        return answer.json()

    def wait_for_end(self, execution: str) -> dict[str, Any]:
        """Its row, and what it has set, once it has ended."""
        until(lambda: self.get(f"/api/executions/{execution}/status")["ended"])
        return {**self.get(f"/api/executions/{execution}"), **self.get(f"/api/vars/{execution}")}

    def events(self, execution: str, *types: str) -> list[dict[str, Any]]:
        found, after = [], 0
        while after is not None:
            page = self.get(
                f"/api/executions/{execution}/events",
                after=after,
                limit=1000,
                types=",".join(types),
            )
            found += page["events"]
            after = page["next"]
        return found

    def path(self, execution: str) -> list[str]:
        """Steps in the order they were entered."""
        return [event["data"]["step"] for event in self.events(execution, "step.enter")]

    def comes(self, execution: str, kind: str) -> dict[str, Any]:
        """The first event of this type, when it is there."""
        until(lambda: self.events(execution, kind))
        return self.events(execution, kind)[0]

    def children(self, execution: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.get("/api/executions", parent=execution, limit=500)[
            "executions"
        ]
        return rows


@pytest.fixture(scope="module")
def stack() -> Iterator[StackClient]:
    with run_two_workers() as client:
        yield client


@contextmanager
def run_two_workers(**settings: str) -> Iterator[StackClient]:
    """A stack with these settings in the environment of its processes."""
    with temporary_home("e2e") as home:
        command = NoetlCommand(home).with_env(**settings)
        with run_stack(command, workers=2) as stack, open_stack_client(stack) as client:
            until(lambda: len(client.get("/api/workers")) == 2)
            yield client


@contextmanager
def open_stack_client(stack: Stack) -> Iterator[StackClient]:
    headers = stack.command.token_header
    with httpx.Client(
        base_url=stack.url, trust_env=False, timeout=HANG_LIMIT_S, headers=headers
    ) as http:
        yield StackClient(stack.client, http)

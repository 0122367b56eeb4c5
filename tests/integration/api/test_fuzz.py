"""No request to any route is answered with an error of the server."""

import json
import random
import re
from collections import Counter
from typing import Any

from noetl.server.http.application import make_openapi
from tests.integration.api.api_server import NOOP, WAITS, run_api_server

SIGNS = "a{}%[]\\\"'é\u2028😀 \n/.1"
WORDS = ["tests/simple", "1", "0", "-1", "9" * 20, "%2e%2e", "a b", "é", "x" * 300, "one", "latest", "1e9", "2026-01-01", "%ff",
         "/", "//", "[", "running", "true", "%00"]  # fmt: skip
REQUESTS = 900
LIVE_EXECUTIONS = 10  # some requests end one, so that later ones are refused


class Fuzz:
    def __init__(self, seed: int, executions: list[str]) -> None:
        self.dice = random.Random(seed)
        self.executions = executions
        self.spec = make_openapi()
        # Streams do not end.
        self.routes = [
            (path, operations)
            for path, operations in self.spec["paths"].items()
            if "text/event-stream" not in json.dumps(operations)
        ]

    def value(self, depth: int = 0) -> Any:
        match self.dice.randrange(9 if depth < 3 else 7):
            case 0:
                return None
            case 1:
                return self.dice.random() < 0.5
            case 2:
                bits = self.dice.choice(
                    [8, 31, 53, 62, 62, 62, 62, 70]
                )  # the last are refused: they do not fit
                return self.dice.randrange(-(2**bits), 2**bits)
            case 3:
                return self.dice.random() * 1e300
            case 4:
                return "".join(self.dice.choices(SIGNS, k=self.dice.randrange(12)))
            case 5:
                return "{{ workload.n }}"
            case 6:
                return "x" * self.dice.randrange(5000)
            case 7:
                return [self.value(depth + 1) for _ in range(self.dice.randrange(4))]
            case _:
                names = self.dice.choices(
                    ["a", "name", "payload", "execution_id", "template", "x{{"], k=3
                )
                return {name: self.value(depth + 1) for name in names}

    def word(self, name: str = "") -> str:
        likely = name in ("execution_id", "parent", "before")
        return self.dice.choice(self.executions if likely and self.dice.random() < 0.6 else WORDS)

    def body(self, operation: dict[str, Any]) -> Any:
        schema = (
            operation.get("requestBody", {})
            .get("content", {})
            .get("application/json", {})
            .get("schema", {})
        )
        found = re.search(r"#/components/schemas/(\w+)", json.dumps(schema))
        if found is None or self.dice.random() < 0.2:
            return self.value()
        fields = self.spec["components"]["schemas"][found[1]]["properties"]
        return {name: self.field(name) for name in fields if self.dice.random() < 0.7}

    def field(self, name: str) -> Any:
        if self.dice.random() < 0.4:
            return self.value()
        return {
            "execution_id": self.dice.choice(self.executions),
            "path": "tests/simple",
            "name": "go",
        }.get(name, self.value())

    def request(self) -> tuple[str, str, dict[str, Any]]:
        path, operations = self.dice.choice(self.routes)
        method, operation = self.dice.choice(list(operations.items()))
        url = re.sub(r"{(\w+)}", lambda part: self.word(part[1]), path)
        queries = [
            each["name"] for each in operation.get("parameters", ()) if each["in"] == "query"
        ]
        params = {
            name: self.word(name)
            for name in queries
            if name not in ("min_seq", "wait") and self.dice.random() < 0.5
        }
        rest: dict[str, Any] = {"params": params or None}
        if method == "post":
            kind = self.dice.choice(["application/json", "application/json", "text/yaml", "x"])
            rest["headers"] = {
                "Content-Type": kind,
                "Idempotency-Key": self.dice.choice(["a", "b", "x" * 300]),
            }
            rest["content"] = json.dumps(self.body(operation)).encode()
        return method, url, rest


async def test_no_request_makes_the_server_fail() -> None:
    async with run_api_server() as here:
        await here.register(NOOP)
        await here.register(WAITS)
        executions = [await here.start()]
        executions += [await here.start("tests/waits") for _ in range(LIVE_EXECUTIONS)]
        for execution_id in executions:
            await here.get(f"/api/executions/{execution_id}", min_seq=1)
        fuzz, seen = Fuzz(7, executions), Counter[int]()
        for _ in range(REQUESTS):
            method, url, rest = fuzz.request()
            answer = await here.http.request(method, url, **rest)
            seen[answer.status_code] += 1
            assert answer.status_code < 500, (method, url, rest, answer.text)
            if answer.status_code >= 400:
                assert answer.headers["content-type"] == "application/problem+json", (method, url)
        assert seen[200] > 20
        assert seen[202] > 5

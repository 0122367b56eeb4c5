"""Routes: what is read from a request, what is refused and how, and what is answered."""

import asyncio
import json
from typing import Annotated, Any, Literal

import httpx
import msgspec
import pytest
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from noetl.model.errors import Conflict
from noetl.server.http.openapi import make_document
from noetl.server.http.parameters import HeaderParameter, Id, Key, Limit, QueryParameter
from noetl.server.http.routing import HttpRouter, Reply, RoutedEndpoint, Routes
from noetl.server.http.structs import RequestBody, View

JSON = {"Content-Type": "application/json"}
routes = Routes("tests", public=True)


class Part(RequestBody, frozen=True):
    name: Annotated[str, Meta(min_length=1, max_length=5)]


class Order(RequestBody, frozen=True):
    parts: Annotated[list[Part], Meta(min_length=1, max_length=2)]
    count: Annotated[int, Meta(ge=1)] | None = None
    version: int | Literal["latest"] | None = None
    how: Literal["slow", "fast"] = "slow"


class RoutedRequest(View, frozen=True):
    value: Any


@routes.get("/api/things/{execution_id}")
async def get_thing(
    execution_id: Id,
    limit: Limit = 5,
    wide: Annotated[bool, QueryParameter()] = False,
    last_event_id: Annotated[int | None, HeaderParameter(ge=0)] = None,
) -> RoutedRequest:
    """A thing."""
    return RoutedRequest([execution_id, limit, wide, last_event_id])


@routes.get("/api/things/newest")
async def get_newest() -> RoutedRequest:
    """The newest thing."""
    return RoutedRequest("newest")


@routes.post("/api/things", status=201)
async def add_thing(body: Order, key: Key = None) -> Reply[RoutedRequest]:
    """Add a thing."""
    return Reply(RoutedRequest([len(body.parts), key]), 200, {"ETag": '"1"'})


@routes.post("/api/maybe")
async def maybe(body: Part | None = None) -> RoutedRequest:
    """A body that may be left out."""
    return RoutedRequest(None if body is None else body.name)


@routes.get("/api/open", strict=False)
async def open_route() -> RoutedRequest:
    """A route for unknown callers."""
    return RoutedRequest("open")


@routes.get("/api/fails")
async def fails() -> RoutedRequest:
    """A route that is refused."""
    raise Conflict("no", hint="noetl exec list")


async def answer_plainly(request: Request) -> Response:
    return Response(b"plain")


def ask(method: str, url: str, **more: Any) -> httpx.Response:
    async def send() -> httpx.Response:
        router = HttpRouter()
        router.add_routes(routes.routes)
        endpoint = RoutedEndpoint(answer_plainly, answer_plainly, public=True)
        for verb in ("GET", "HEAD"):
            router.add_endpoint(verb, "/plain/{rest:path}", endpoint)
        transport = httpx.ASGITransport(router)
        async with httpx.AsyncClient(transport=transport, base_url="http://t") as client:
            return await client.request(method, url, **more)

    return asyncio.run(send())


def find_codes(answer: httpx.Response) -> list[tuple[str, str]]:
    assert answer.headers["content-type"] == "application/problem+json"
    return [(finding["at"], finding["code"]) for finding in answer.json()["findings"]]


@pytest.mark.parametrize(
    ("query", "limit"),
    [("", 5), ("?limit=7", 7), ("?limit=%207%20", 7), ("?limit=7.0", 7), ("?limit=%2B7", 7)],
)
def test_integers_of_a_query(query: str, limit: int) -> None:
    assert ask("GET", f"/api/things/77{query}").json()["value"] == ["77", limit, False, None]


@pytest.mark.parametrize("word", ["1", "true", "TRUE", "yes", "on"])
def test_words_for_true(word: str) -> None:
    assert ask("GET", f"/api/things/77?wide={word}").json()["value"][2] is True


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("limit=x", "int_parsing"),
        ("limit=1.5", "int_parsing"),
        ("limit=", "int_parsing"),
        ("limit=0", "greater_than_equal"),
        (f"limit={1 << 70}", "less_than_equal"),
        (f"limit={'9' * 5000}", "int_parsing_size"),
        ("wide=maybe", "bool_parsing"),
        ("offset=1", "unknown_parameter"),
        ("limit=1&limit=2", "repeated_parameter"),
    ],
)
def test_a_parameter_that_does_not_fit_is_refused_by_name(query: str, code: str) -> None:
    answer = ask("GET", f"/api/things/77?{query}")
    assert (answer.status_code, find_codes(answer)) == (
        422,
        [(f"query.{query.partition('=')[0]}", code)],
    )


@pytest.mark.parametrize("written", ["0", "abc", "77%0A", "9" * 20])
def test_an_id_that_no_execution_has_is_not_found(written: str) -> None:
    """A line break at the end is not part of the pattern, although `$` would allow it."""
    assert ask("GET", f"/api/things/{written}").status_code == 404


def test_a_key_with_a_line_break_is_refused() -> None:
    body = b'{"parts": [{"name": "a"}]}'
    assert ask(
        "POST", "/api/things", content=body, headers={**JSON, "Idempotency-Key": "k"}
    ).is_success
    refused = ask("POST", "/api/things", content=body, headers={**JSON, "Idempotency-Key": "a b"})
    assert find_codes(refused) == [("header.Idempotency-Key", "string_pattern_mismatch")]


def test_a_header_is_named_with_hyphens() -> None:
    answer = ask("GET", "/api/things/77", headers={"Last-Event-ID": "9"})
    assert answer.json()["value"][3] == 9


def test_everything_that_is_wrong_with_a_body_is_told_without_its_values() -> None:
    body = {"parts": [{"name": ""}, {"name": "canary"}], "count": "canary", "how": "canary", "x": 1}
    answer = ask("POST", "/api/things", json=body)
    assert answer.status_code == 422
    assert find_codes(answer) == [
        ("body.parts.0.name", "string_too_short"),
        ("body.parts.1.name", "string_too_long"),
        ("body.count", "int_type"),
        ("body.how", "literal_error"),
        ("body.x", "extra_forbidden"),
    ]
    assert "canary" not in answer.text
    assert "Input should be 'slow' or 'fast'" in answer.text  # in the order of the declaration


@pytest.mark.parametrize(
    ("body", "codes"),
    [
        ({}, [("body.parts", "missing")]),
        ({"parts": []}, [("body.parts", "too_short")]),
        ({"parts": [1]}, [("body.parts.0", "model_attributes_type")]),
        ({"parts": {}}, [("body.parts", "list_type")]),
        ([], [("body", "model_attributes_type")]),
        (None, [("body", "model_attributes_type")]),
        (
            {"parts": [{"name": "a"}], "version": "x"},
            [("body.version.int", "int_type"), ("body.version.literal['latest']", "literal_error")],
        ),
        ({f"k{number}": 1 for number in range(30)}, [("body", "value_error")]),
    ],
)
def test_bodies_that_do_not_fit(body: Any, codes: list[tuple[str, str]]) -> None:
    answer = ask("POST", "/api/things", content=json.dumps(body), headers=JSON)
    assert (answer.status_code, find_codes(answer)) == (422, codes)


def test_a_body_that_is_not_json_is_a_bad_request() -> None:
    answer = ask("POST", "/api/things", content=b"{", headers=JSON)
    assert (answer.status_code, answer.json()["code"]) == (400, "BAD_JSON")


def test_a_body_of_another_type_is_not_read() -> None:
    answer = ask("POST", "/api/things", content=b"{}", headers={"Content-Type": "text/plain"})
    assert find_codes(answer) == [("body", "model_attributes_type")]
    assert "Content-Type" in answer.json()["hint"]


def test_a_body_may_be_left_out_when_its_route_says_so() -> None:
    assert ask("POST", "/api/maybe").json() == {"value": None}
    assert ask("POST", "/api/maybe", content=b"null", headers=JSON).json() == {"value": None}
    assert ask("POST", "/api/maybe", json={"name": "a"}).json() == {"value": "a"}
    assert find_codes(ask("POST", "/api/things")) == [("body", "missing")]


def test_a_reply_has_a_status_and_headers_of_its_own() -> None:
    answer = ask("POST", "/api/things", json={"parts": [{"name": "a"}]})
    assert (answer.status_code, answer.headers["etag"]) == (200, '"1"')


def test_an_error_is_answered_as_a_problem_with_routes() -> None:
    answer = ask("GET", "/api/fails")
    assert (answer.status_code, answer.json()["routes"]) == (409, ["GET /api/executions"])


def test_a_path_without_parameters_goes_before_others() -> None:
    assert ask("GET", "/api/things/newest").json() == {"value": "newest"}


def test_unknown_paths_and_methods() -> None:
    assert ask("GET", "/api/nothing").status_code == 404
    assert ask("GET", "/api/things/77/").status_code == 404
    refused = ask("DELETE", "/api/things/77")
    assert (refused.status_code, refused.headers["allow"]) == (405, "GET")
    assert ask("HEAD", "/api/things/77").status_code == 405


def test_a_plain_route_answers_head_too() -> None:
    assert ask("GET", "/plain/a/b").content == b"plain"
    assert ask("HEAD", "/plain/a/b").status_code == 200


def test_a_route_for_unknown_callers_ignores_their_parameters() -> None:
    assert ask("GET", "/api/open?x=1&x=2").json() == {"value": "open"}


def test_an_argument_that_no_request_has_is_an_error_of_the_declaration() -> None:
    async def wrong(thing: str) -> RoutedRequest:
        return RoutedRequest(thing)

    declared = Routes("tests")
    declared.get("/api/wrong")(wrong)
    with pytest.raises(TypeError, match="thing is no part of a request"):
        make_document(declared.routes)


def test_the_document_says_what_is_read() -> None:
    document = make_document(routes.routes)
    operation = document["paths"]["/api/things/{execution_id}"]["get"]
    named = {each["name"]: each for each in operation["parameters"]}
    assert list(named) == ["execution_id", "limit", "wide", "last-event-id"]
    assert named["execution_id"]["schema"]["pattern"] == "^[1-9][0-9]{0,18}$"
    assert named["limit"]["schema"]["default"] == 5
    order = document["components"]["schemas"]["Order"]
    assert order["properties"]["how"]["enum"] == ["slow", "fast"]
    assert order["additionalProperties"] is False
    assert msgspec.json.encode(document)

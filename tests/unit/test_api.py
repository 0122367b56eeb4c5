"""The API that other tests ask: its answers are what the workloads say, for every caller and every repetition."""

import asyncio
from collections.abc import Callable
from functools import partialmethod
from typing import Any

import httpx
import pytest

from tests.api import patients
from tests.api.app import make
from tests.api.troubles import Window

FACILITIES = [7573, 7461, 7473, 7605, 7484, 7434, 7587, 7572, 7513, 7472]


class ApiCaller:
    """The application, asked without a network."""

    def __init__(self, rate_limit: int = 0) -> None:
        self._transport = httpx.ASGITransport(make(rate_limit))

    def ask(self, method: str, url: str, **more: Any) -> httpx.Response:
        async def send_request() -> httpx.Response:
            async with httpx.AsyncClient(
                transport=self._transport, base_url="http://api"
            ) as client:
                return await client.request(method, url, **more)

        return asyncio.run(send_request())

    get = partialmethod(ask, "GET")
    post = partialmethod(ask, "POST")
    delete = partialmethod(ask, "DELETE")


@pytest.fixture
def api() -> ApiCaller:
    return ApiCaller()


def mds_of(first: int, last: int) -> int:
    one = (patients.records(patient, "assessments", 1, 1) for patient in range(first, last + 1))
    return sum(len(record["assessmentIds"]) for [record] in one)


def test_patients_are_as_many_as_the_benchmark_says() -> None:
    def pages(count: int) -> list[int]:
        return [
            sum(patients.pages_of(patient, kind) for patient in range(1, count + 1))
            for kind in patients.PAGES
        ]

    assert pages(100) == [307, 207, 251, 100]
    assert mds_of(1, 100) == 756
    assert pages(10_000) == [29_898, 19_907, 25_024, 10_000]
    assert [mds_of(1_000 * number + 1, 1_000 * (number + 1)) for number in range(10)] == FACILITIES


def test_a_batch_is_every_page_of_its_patients(api: ApiCaller) -> None:
    ids = ",".join(map(str, range(1, 26)))
    for kind in patients.PAGES:
        found = api.get(f"/api/v1/pft/batch/{kind}", params={"patientIds": ids}).json()["rows"]
        assert len(found) == sum(patients.pages_of(patient, kind) for patient in range(1, 26))
        assert {row["facility_mapping_id"] for row in found} == {1}
        assert all(len(row["payload"]["data"]) == 10 for row in found)
    rows = api.get(
        "/api/v1/pft/batch/mds", params={"patientIds": ids, "patientsPerFacility": 20}
    ).json()["rows"]
    assert rows[-1]["assessment_id"] == f"MDS-25-{patients.pages_of(25, 'assessments')}"
    assert rows[-1]["facility_mapping_id"] == 2


def test_a_patient_is_read_page_by_page(api: ApiCaller) -> None:
    found, page, more = [], 1, True
    while more:
        told = api.get(
            "/api/v1/patient/assessments", params={"patientId": 7, "page": page, "pageSize": 2}
        ).json()
        found += told["data"]
        page, more = page + 1, told["paging"]["hasMore"]
    assert len(found) == 2 * patients.pages_of(7, "assessments")
    assert found[0]["id"] == "ASSE-7-p1-i0"
    assert (
        api.get("/api/v1/patient/demographics", params={"patientId": 7}).json()["data"]["name"]
        == "Patient 7"
    )
    assert (
        api.get("/api/v1/pft/mds/details", params={"assessmentId": "MDS-7-p1-0-00"}).json()[
            "sections"
        ][2]["section"]
        == 2
    )


def by_page(api: ApiCaller) -> list[Any]:
    found, page = [], 1
    while True:
        told = api.get("/api/v1/assessments", params={"page": page}).json()
        found += told["data"]
        if not told["paging"]["hasMore"]:
            return found
        page = told["paging"]["page"] + 1


def by_offset(api: ApiCaller) -> list[Any]:
    found: list[Any] = []
    while (told := api.get("/api/v1/users", params={"offset": len(found)}).json())["has_more"]:
        found += told["users"]
    return found + told["users"]


def by_cursor(api: ApiCaller) -> list[Any]:
    found, cursor = [], ""
    while cursor is not None:
        told = api.get("/api/v1/events", params={"cursor": cursor}).json()
        found, cursor = found + told["events"], told["next_cursor"]
    return found


def by_link(api: ApiCaller) -> list[Any]:
    found, url = [], "/api/v1/linked?per_page=8"
    while url:
        told = api.get(url)
        found, url = found + told.json(), told.links.get("next", {}).get("url", "")
    return found


def by_next(api: ApiCaller) -> list[Any]:
    found, url = [], "/api/v1/next"
    while url:
        told = api.get(url).json()
        found, url = found + told["items"], told["next"]
    return found


@pytest.mark.parametrize("paged", [by_page, by_offset, by_cursor, by_link, by_next])
def test_every_way_of_paging_gives_each_of_35_once(
    api: ApiCaller, paged: Callable[[ApiCaller], list[Any]]
) -> None:
    assert [row["id"] for row in paged(api)] == list(range(1, 36))


def test_a_flaky_page_fails_once(api: ApiCaller) -> None:
    def page() -> int:
        return api.get("/api/v1/flaky", params={"page": 2, "fail_on": "2,3"}).status_code

    assert [page(), page(), page()] == [500, 200, 200]
    api.post("/api/v1/flaky/reset")
    assert page() == 500


@pytest.mark.parametrize(
    ("kind", "status"), [("429", 429), ("503", 503), ("auth", 401), ("403", 403), ("404", 404)]
)
def test_errors_as_asked_for(api: ApiCaller, kind: str, status: int) -> None:
    told = api.get("/api/v1/errors", params={"error_type": kind})
    assert told.status_code == status
    assert ("retry-after" in told.headers) == (kind in ("429", "503"))


def test_a_window_admits_so_many_in_any_second() -> None:
    window = Window(2)
    assert [window.admit(at) for at in (0.0, 0.5, 0.75)] == [0.0, 0.0, 0.25]
    assert window.admit(1.0) == 0.0
    assert window.admit(1.25) == 0.25


def test_patients_are_limited_when_that_is_asked_for() -> None:
    api = ApiCaller(rate_limit=1)
    asked = [
        api.get("/api/v1/patient/conditions", params={"patientId": 1}).status_code for _ in range(2)
    ]
    assert asked == [200, 429]


def test_what_is_sent_twice_with_one_key_is_taken_once(api: ApiCaller) -> None:
    for key in ("a", "a", "b"):
        api.post("/api/v1/inbox/x", json={"from": key}, headers={"Idempotency-Key": key})
    assert api.get("/api/v1/inbox/x").json() == {
        "taken": [{"from": "a"}, {"from": "b"}],
        "keys": ["a", "a", "b"],
    }


def test_calls_are_counted(api: ApiCaller) -> None:
    for path in ("/api/v1/users", "/api/v1/users", "/health", "/nowhere"):
        api.get(path)
    assert api.get("/api/v1/calls").json() == {"/api/v1/users": 2, "/nowhere": 1}
    assert api.delete("/api/v1/calls").json() == {}


def test_the_rest_answers(api: ApiCaller) -> None:
    probe = api.get("/api/v1/concurrency/probe", params={"label": "x"})
    assert probe.json() == {"active": 0}
    stats = {"started": 1, "completed": 1, "active": 0, "max_active": 1, "labels": {"x": 1}}
    assert api.get("/api/v1/concurrency/stats").json() == stats
    asked = [
        api.get("/api/v1/rate-limited", params={"requests_per_second": 1}).status_code
        for _ in range(2)
    ]
    assert asked == [200, 429]
    heavy = api.get("/api/v1/heavy", params={"pageSize": 2, "payload_kb": 2}).json()["data"]
    assert [len(item["payload"]) for item in heavy] == [2_048, 2_048]
    assert api.get("/api/v1/reference-chain/items").json()["count"] == 382
    assert api.get("/api/v1/reference-chain/items", params={"refs": "windowed", "total": 3}).json()[
        "items"
    ][1]["refs"] == [1, 2, 3]
    assert api.get("/api/v1/reference-chain/detail/9").json()["previous"] == 8
    bundle = api.get("/api/v1/patient-records", params={"patientId": 3, "delay_seconds": 0})
    assert (bundle.json()["resourceType"], len(bundle.content) > 100_000) == ("Bundle", True)
    assert len(api.get("/hosts/jsonplaceholder/posts").json()) == 100
    assert len(api.get("/hosts/jsonplaceholder/users").json()) == 10
    assert api.post("/hosts/httpbin/post", json={"a": 1}).json()["json"] == {"a": 1}
    assert api.get("/hosts/httpbin/status/418").status_code == 418
    assert (
        len(
            api.get("/hosts/open-meteo/v1/forecast", params={"latitude": 50}).json()["hourly"][
                "time"
            ]
        )
        == 24
    )
    assert "Example Domain" in api.get("/hosts/example.com").text

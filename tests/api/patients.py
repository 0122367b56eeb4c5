"""Patients of ten facilities: everything about one is computed from hashes of its number, so all is known and nothing stored."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import cache
from hashlib import md5
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tests.api.pages import mark, noise
from tests.api.requests import answer, number, real, text
from tests.api.troubles import Window

PAGES = {"assessments": (2, 4), "conditions": (1, 3), "medications": (2, 3), "vital_signs": (1, 1)}
TYPES = (*PAGES, "demographics")
PER_FACILITY = 1_000
MOST_IDS = 500
RECORDS_LIMIT = 50  # requests per second of patient-records
RECORDS_DELAY = (2.0, 4.0)  # seconds
RECORDS_KB = 100


@cache
def h(key: str) -> int:
    return int(md5(key.encode()).hexdigest(), 16)


def pages_of(patient: int, kind: str) -> int:
    least, most = PAGES[kind]
    return least + h(f"{patient}:{kind}") % (most - least + 1)


def records(patient: int, kind: str, page: int, size: int) -> list[dict[str, Any]]:
    of_page = h(f"{patient}:{kind}:{page}")
    found = []
    for index in range(size):
        record: dict[str, Any] = {
            "id": f"{kind[:4].upper()}-{patient}-p{page}-i{index}",
            "patientId": patient,
            "dataType": kind,
            "value": (of_page + index) % 100,
            "remark": mark(index),
        }
        if kind == "assessments":
            count = 5 + (of_page + index) % 6
            record["assessmentIds"] = [
                f"MDS-{patient}-p{page}-{index}-{mds:02}" for mds in range(count)
            ]
        found.append(record)
    return found


def demographics(patient: int) -> dict[str, Any]:
    known = h(f"{patient}:demographics")
    return {
        "patientId": patient,
        "name": f"Patient {patient}",
        "dob": f"{1930 + known % 60}-{1 + known % 12:02}-{1 + known % 28:02}",
        "gender": ("female", "male")[known % 2],
    }


def mds(id: str) -> dict[str, Any]:
    known = h(id)
    sections = [
        {
            "section": section,
            "questions": [
                {"question": question, "answer": (known >> (section * 3 + question)) % 5}
                for question in range(3)
            ],
        }
        for section in range(3)
    ]
    return {"assessmentId": id, "sections": sections, "remark": mark(known % 100)}


def page_of(patient: int, kind: str, page: int, size: int) -> dict[str, Any]:
    if kind == "demographics":
        return {
            "data": demographics(patient),
            "paging": {"hasMore": False, "page": 1, "totalPages": 1},
        }
    last = pages_of(patient, kind)
    if not 1 <= page <= last:
        raise HTTPException(404, f"{kind} of patient {patient} have {last} pages")
    paging = {"hasMore": page < last, "page": page, "pageSize": size, "totalPages": last}
    return {"data": records(patient, kind, page, size), "paging": paging}


def batch_of(patient: int, kind: str, size: int, per_facility: int) -> list[dict[str, Any]]:
    """Every page of one patient as a row."""
    facility = (patient - 1) // per_facility + 1
    row = {"pcc_patient_id": patient, "facility_mapping_id": facility}
    if kind == "demographics":
        return [{**row, "payload": demographics(patient)}]
    if kind == "mds":
        id = f"MDS-{patient}-{pages_of(patient, 'assessments')}"
        return [{**row, "assessment_id": id, "payload": mds(id)}]
    last = pages_of(patient, kind)
    return [
        {
            **row,
            "page_number": page,
            "is_last_page": page == last,
            "payload": {"data": records(patient, kind, page, size)},
        }
        for page in range(1, last + 1)
    ]


# ---- routes ------------------------------------------------------------------------------------------------------------


def _check_kind(kind: str, kinds: tuple[str, ...]) -> str:
    if kind not in kinds:
        raise HTTPException(404, f"{kind} is none of {', '.join(kinds)}")
    return kind


async def one(request: Request) -> Response:
    kind = _check_kind(request.path_params["kind"], TYPES)
    patient, page, size = (
        number(request, "patientId"),
        number(request, "page", 1),
        number(request, "pageSize", 10),
    )
    return answer(page_of(patient, kind, page, size))


async def batch(request: Request) -> Response:
    kind = _check_kind(request.path_params["kind"], (*TYPES, "mds"))
    size, per_facility = (
        number(request, "pageSize", 10),
        number(request, "patientsPerFacility", PER_FACILITY),
    )
    try:
        patients = [int(part) for part in text(request, "patientIds").split(",")]
    except ValueError:
        raise HTTPException(400, "patientIds are numbers, with commas between them") from None
    if len(patients) > MOST_IDS:
        raise HTTPException(400, f"at most {MOST_IDS} patients at once")
    rows = [row for patient in patients for row in batch_of(patient, kind, size, per_facility)]
    return answer({"rows": rows, "count": len(rows)})


async def details(request: Request) -> Response:
    return answer(mds(text(request, "assessmentId")))


async def mds_ids(request: Request) -> Response:
    patient = number(request, "patientId")
    ids = [
        id
        for record in records(patient, "assessments", 1, number(request, "pageSize", 1))
        for id in record["assessmentIds"]
    ]
    return answer({"patientId": patient, "assessmentIds": ids})


async def mds_detail(request: Request) -> Response:
    return answer(mds(request.path_params["id"]))


async def bundle(request: Request) -> Response:
    """FHIR-like, heavy and slow; how slow is known from the patient."""
    patient, page = number(request, "patientId", 1), number(request, "page", 1)
    last = 2 + h(f"{patient}:records") % 4
    shortest, longest = RECORDS_DELAY
    delay = shortest + h(f"{patient}:delay:{page}") % 1_000 / 1_000 * (longest - shortest)
    await asyncio.sleep(real(request, "delay_seconds", delay))
    entries = [
        {
            "resource": {
                "resourceType": "Observation",
                "id": f"{patient}-{page}-{index}",
                "note": noise(index, 1_000),
            }
        }
        for index in range(RECORDS_KB)
    ]
    paging = {"hasMore": page < last, "page": page, "totalPages": last}
    return answer(
        {"resourceType": "Bundle", "total": last * RECORDS_KB, "entry": entries, "paging": paging}
    )


Endpoint = Callable[[Request], Awaitable[Response]]


def _limit_rate(window: Window, endpoint: Endpoint) -> Endpoint:
    async def check_rate(request: Request) -> Response:
        window.check()
        return await endpoint(request)

    return check_rate


def routes(rate_limit: int) -> list[Route]:
    window = Window(rate_limit)
    return [
        Route("/api/v1/patient/{kind}", _limit_rate(window, one)),
        Route("/api/v1/pft/batch/{kind}", batch),
        Route("/api/v1/pft/mds/details", _limit_rate(window, details)),
        Route("/api/v1/mds/assessments", _limit_rate(window, mds_ids)),
        Route("/api/v1/mds/details/{id}", _limit_rate(window, mds_detail)),
        Route("/api/v1/patient-records", _limit_rate(Window(RECORDS_LIMIT), bundle)),
    ]

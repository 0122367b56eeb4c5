"""Lists that come in pages: by page number, offset, cursor, link header and address of the next page; heavy ones; linked ones."""

import base64
from random import Random
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tests.api.requests import answer, number, real

TOTAL = 35
HEAVY = 100
CHAIN = 382


def mark(index: int) -> str:
    """In every record: no event may have it (`tests/inspection.py`)."""
    return f"CANARY-{index + 1}"


def assessment(index: int) -> dict[str, Any]:
    return {
        "id": index + 1,
        "name": f"Assessment {index + 1}",
        "score": (index * 37) % 101,
        "remark": mark(index),
    }


def user(index: int) -> dict[str, Any]:
    return {
        "id": index + 1,
        "name": f"User {index + 1}",
        "email": f"user{index + 1}@example.com",
        "remark": mark(index),
    }


def event(index: int) -> dict[str, Any]:
    kind = ("click", "view", "purchase")[index % 3]
    return {"id": index + 1, "type": kind, "value": index * 10, "remark": mark(index)}


def cut(
    request: Request, size_name: str, size: int, total: int = TOTAL
) -> tuple[int, int, int, int]:
    """Page number, its size, and where in how many it begins and ends."""
    page, size, total = (
        number(request, "page", 1),
        number(request, size_name, size),
        number(request, "total", total),
    )
    if page < 1 or size < 1:
        raise HTTPException(400, "pages are counted from 1 and hold something")
    return page, size, min((page - 1) * size, total), min(page * size, total)


async def by_page(request: Request) -> Response:
    page, size, start, stop = cut(request, "pageSize", 10)
    total = number(request, "total", TOTAL)
    paging = {"hasMore": stop < total, "page": page, "pageSize": size, "total": total}
    return answer({"data": [assessment(index) for index in range(start, stop)], "paging": paging})


async def by_offset(request: Request) -> Response:
    offset, limit, total = (
        number(request, "offset", 0),
        number(request, "limit", 10),
        number(request, "total", TOTAL),
    )
    stop = min(offset + limit, total)
    users = [user(index) for index in range(offset, stop)]
    return answer(
        {"users": users, "offset": offset, "limit": limit, "total": total, "has_more": stop < total}
    )


async def by_cursor(request: Request) -> Response:
    limit, total = number(request, "limit", 10), number(request, "total", TOTAL)
    page = decode_cursor(request.query_params.get("cursor"))
    stop = min(page * limit, total)
    events = [event(index) for index in range(min((page - 1) * limit, total), stop)]
    following = base64.b64encode(str(page + 1).encode()).decode() if stop < total else None
    return answer({"events": events, "next_cursor": following})


async def by_next_cursor(request: Request) -> Response:
    """As the appendix of the specification has it: `results`, and `nextCursor`, which is null at the end."""
    page = decode_cursor(request.query_params.get("cursor"))
    stop = min(page * 10, TOTAL)
    following = base64.b64encode(str(page + 1).encode()).decode() if stop < TOTAL else None
    return answer(
        {
            "results": [event(index) for index in range((page - 1) * 10, stop)],
            "nextCursor": following,
        }
    )


def decode_cursor(cursor: str | None) -> int:
    if not cursor:
        return 1
    try:
        return int(base64.b64decode(cursor, validate=True))
    except ValueError:
        raise HTTPException(400, f"{cursor!r} is no cursor of ours") from None


async def by_link(request: Request) -> Response:
    """The header says where the next page is; the body is nothing but the list."""
    page, _, start, stop = cut(request, "per_page", 10)
    links = ['</api/v1/linked>; rel="first"']
    if stop < number(request, "total", TOTAL):
        following = request.url.include_query_params(page=page + 1)
        links.append(f'<{following.path}?{following.query}>; rel="next"')
    return answer([user(index) for index in range(start, stop)], headers={"Link": ", ".join(links)})


async def by_next(request: Request) -> Response:
    page, _, start, stop = cut(request, "size", 10)
    more = stop < number(request, "total", TOTAL)
    following = str(request.url.include_query_params(page=page + 1)) if more else None
    return answer({"items": [event(index) for index in range(start, stop)], "next": following})


async def totals(request: Request) -> Response:
    """Every page is a map: the keys of all of them together are the whole."""
    page, _, start, stop = cut(request, "size", 10)
    scores = {f"user{index + 1}": assessment(index)["score"] for index in range(start, stop)}
    return answer({"scores": scores, "page": page, "more": stop < number(request, "total", TOTAL)})


async def heavy(request: Request) -> Response:
    page, size, start, stop = cut(request, "pageSize", 10, HEAVY)
    characters = int(real(request, "payload_kb", 1) * 1024)
    items = [{"id": index + 1, "payload": noise(index, characters)} for index in range(start, stop)]
    paging = {
        "hasMore": stop < number(request, "total", HEAVY),
        "page": page,
        "pageSize": size,
        "total": HEAVY,
    }
    return answer({"data": items, "paging": paging})


def noise(seed: int, characters: int) -> str:
    """Does not compress well, and is the same every time."""
    return base64.b64encode(Random(seed).randbytes(characters * 3 // 4 + 3)).decode()[:characters]


async def chain(request: Request) -> Response:
    """`refs` says how an item tells of its detail: by its address, as a window of neighbours, or with the detail in it."""
    total, refs = number(request, "total", CHAIN), request.query_params.get("refs", "linked")
    if refs not in ("linked", "windowed", "expanded"):
        raise HTTPException(400, "refs is linked, windowed or expanded")
    return answer({"items": [link(index, total, refs) for index in range(total)], "count": total})


def link(index: int, total: int, refs: str) -> dict[str, Any]:
    item: dict[str, Any] = {"id": index + 1, "name": f"Item {index + 1}", "remark": mark(index)}
    if refs == "linked":
        item["ref"] = f"/api/v1/reference-chain/detail/{index + 1}"
    elif refs == "windowed":
        item["refs"] = [near + 1 for near in range(max(index - 1, 0), min(index + 2, total))]
    else:
        item["detail"] = detail_of(index + 1)
    return item


def detail_of(id: int) -> dict[str, Any]:
    return {"id": id, "payload": noise(id, 256), "previous": id - 1 or None}


async def detail(request: Request) -> Response:
    return answer(detail_of(request.path_params["id"]))


def routes() -> list[Route]:
    return [
        Route("/api/v1/assessments", by_page),
        Route("/api/v1/users", by_offset),
        Route("/api/v1/events", by_cursor),
        Route("/api/v1/results", by_next_cursor),
        Route("/api/v1/linked", by_link),
        Route("/api/v1/next", by_next),
        Route("/api/v1/scores", totals),
        Route("/api/v1/heavy", heavy),
        Route("/api/v1/reference-chain/items", chain),
        Route("/api/v1/reference-chain/detail/{id:int}", detail),
    ]

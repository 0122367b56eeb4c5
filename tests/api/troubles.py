"""What goes wrong, is limited, takes its time, or overlaps."""

import asyncio
import time
from collections import Counter, deque
from dataclasses import dataclass, field

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tests.api.pages import assessment
from tests.api.requests import answer, number, real, text

ERRORS = {"429": 429, "500": 500, "503": 503, "auth": 401, "403": 403, "404": 404}
TIMEOUT = 30.0  # seconds
PAGES = 4
POLLS = 3


class Window:
    """So many requests in any second."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._times: deque[float] = deque()

    def admit(self, now: float) -> float:
        """Seconds to wait; 0: it may pass."""
        while self._times and self._times[0] <= now - 1:
            self._times.popleft()
        if len(self._times) < self.limit:
            self._times.append(now)
            return 0.0
        return self._times[0] + 1 - now

    def check(self) -> None:
        if self.limit and (wait := self.admit(time.monotonic())):
            raise HTTPException(429, "too many requests", {"Retry-After": f"{wait:.3f}"})


@dataclass
class Overlap:
    started: int = 0
    completed: int = 0
    active: int = 0
    max_active: int = 0
    labels: Counter[str] = field(default_factory=Counter)


class Troubles:
    def __init__(self) -> None:
        self.hits: Counter[str] = Counter()
        self.windows: dict[int, Window] = {}
        self.overlap = Overlap()
        self.jobs: Counter[str] = Counter()

    async def flaky(self, request: Request) -> Response:
        """The first hit of a listed page is an error."""
        page = number(request, "page", 1)
        listed = request.query_params.get("fail_on", "").split(",")
        key = f"{request.query_params.get('label', '')}:{page}"
        self.hits[key] += 1
        if str(page) in listed and self.hits[key] == 1:
            raise HTTPException(500, f"page {page} fails once")
        items = [assessment(index) for index in range((page - 1) * 5, page * 5)]
        paging = {"page": page, "hasMore": page < PAGES, "hits": self.hits[key]}
        return answer({"data": items, "paging": paging})

    async def reset_flaky(self, request: Request) -> Response:
        self.hits.clear()
        return answer({"reset": True})

    async def errors(self, request: Request) -> Response:
        kind = text(request, "error_type")
        if kind == "timeout":
            await asyncio.sleep(real(request, "seconds", TIMEOUT))
            return answer({"slow": True})
        if kind not in ERRORS:
            raise HTTPException(400, f"error_type is one of {', '.join(ERRORS)}, timeout")
        headers = {"Retry-After": "1"} if kind in ("429", "503") else None
        return answer({"error": kind}, ERRORS[kind], headers)

    async def answer_within_rate(self, request: Request) -> Response:
        limit = number(request, "requests_per_second", 10)
        self.windows.setdefault(limit, Window(limit)).check()
        return answer({"ok": True, "requests_per_second": limit})

    async def job(self, request: Request) -> Response:
        """Running for the first asks, then done."""
        name, polls = request.path_params["name"], number(request, "polls", POLLS)
        self.jobs[name] += 1
        state = "done" if self.jobs[name] >= polls else "running"
        return answer({"job": name, "state": state, "asked": self.jobs[name]})

    async def reset_overlap(self, request: Request) -> Response:
        self.overlap = Overlap()
        return answer({"reset": True})

    async def probe(self, request: Request) -> Response:
        overlap = self.overlap
        overlap.started += 1
        overlap.active += 1
        overlap.max_active = max(overlap.max_active, overlap.active)
        overlap.labels[request.query_params.get("label", "")] += 1
        try:
            await asyncio.sleep(real(request, "delay_seconds", 0))
        finally:
            overlap.active -= 1
        overlap.completed += 1
        return answer({"active": overlap.active})

    async def stats(self, request: Request) -> Response:
        overlap = self.overlap
        counted = {
            name: getattr(overlap, name)
            for name in ("started", "completed", "active", "max_active")
        }
        return answer({**counted, "labels": dict(overlap.labels)})


def routes() -> list[Route]:
    troubles = Troubles()
    return [
        Route("/api/v1/flaky", troubles.flaky),
        Route("/api/v1/flaky/reset", troubles.reset_flaky, methods=["POST"]),
        Route("/api/v1/errors", troubles.errors),
        Route("/api/v1/rate-limited", troubles.answer_within_rate),
        Route("/api/v1/jobs/{name}", troubles.job),
        Route("/api/v1/concurrency/reset", troubles.reset_overlap, methods=["POST"]),
        Route("/api/v1/concurrency/probe", troubles.probe),
        Route("/api/v1/concurrency/stats", troubles.stats),
    ]

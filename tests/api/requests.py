"""What a request asks for, and how it is answered."""

from collections.abc import Mapping
from typing import Any

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response


def answer(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(orjson.dumps(value), status, headers, "application/json")


def number(request: Request, name: str, default: int | None = None) -> int:
    given = request.query_params.get(name)
    if given is None and default is not None:
        return default
    try:
        return int(given or "")
    except ValueError:
        raise HTTPException(400, f"{name} is {given!r}, not a number") from None


def real(request: Request, name: str, default: float) -> float:
    try:
        return float(request.query_params.get(name, default))
    except ValueError:
        raise HTTPException(400, f"{name} is not a number") from None


def text(request: Request, name: str) -> str:
    given = request.query_params.get(name)
    if not given:
        raise HTTPException(400, f"{name} is missing")
    return given

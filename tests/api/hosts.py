"""Public hosts, as far as playbooks of ours ask them: their routes stand below a path that is used as the base address.

{api}/hosts/httpbin · {api}/hosts/jsonplaceholder · {api}/hosts/open-meteo · {api}/hosts/example.com
"""

import base64
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from tests.api.requests import answer, number, real

POSTS = 100
USERS = 10
PER_USER = POSTS // USERS
NAMES = (
    "Leanne",
    "Ervin",
    "Clementine",
    "Patricia",
    "Chelsey",
    "Dennis",
    "Kurtis",
    "Nicholas",
    "Glenna",
    "Clementina",
)
PAGE = "<!doctype html><html><head><title>Example Domain</title></head><body><h1>Example Domain</h1></body></html>"


async def echo(request: Request) -> Response:
    """httpbin's `/get` and `/post`."""
    body = await request.body()
    shown: dict[str, Any] = {
        "args": dict(request.query_params),
        "headers": dict(request.headers),
        "url": str(request.url),
    }
    if request.method != "GET":
        shown |= {"data": body.decode(errors="replace"), "json": _json(body)}
    return answer(shown)


def _json(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return None


async def status(request: Request) -> Response:
    return Response(status_code=request.path_params["code"])


async def slides(request: Request) -> Response:
    return answer(
        {
            "slideshow": {
                "author": "Yours Truly",
                "title": "Sample Slide Show",
                "slides": [{"title": "Overview"}],
            }
        }
    )


def post(id: int) -> dict[str, Any]:
    return {
        "userId": (id - 1) // PER_USER + 1,
        "id": id,
        "title": f"title {id}",
        "body": f"body of post {id}",
    }


def user(id: int) -> dict[str, Any]:
    name = NAMES[id - 1]
    return {
        "id": id,
        "name": name,
        "username": name.lower(),
        "email": f"{name.lower()}@example.com",
    }


async def posts(request: Request) -> Response:
    of = number(request, "userId", 0)
    return answer([post(id) for id in range(1, POSTS + 1) if of in (0, (id - 1) // PER_USER + 1)])


async def one_post(request: Request) -> Response:
    id = request.path_params["id"]
    return answer(post(id)) if 1 <= id <= POSTS else answer({}, 404)


async def users(request: Request) -> Response:
    return answer([user(id) for id in range(1, USERS + 1)])


async def forecast(request: Request) -> Response:
    """A temperature for every hour of a day, warmest at noon, by latitude."""
    latitude, longitude = real(request, "latitude", 0), real(request, "longitude", 0)
    hours = [f"2030-01-01T{hour:02}:00" for hour in range(24)]
    degrees = [round(30 - abs(latitude) / 3 - abs(hour - 12) / 2, 1) for hour in range(24)]
    hourly = {"time": hours, "temperature_2m": degrees}
    current = {
        "time": hours[12],
        "temperature_2m": degrees[12],
        "temperature": degrees[12],
        "windspeed": 5.0,
    }
    place = {"latitude": latitude, "longitude": longitude, "timezone": "GMT"}
    return answer({**place, "hourly": hourly, "current": current, "current_weather": current})


async def example(request: Request) -> Response:
    return HTMLResponse(PAGE)


async def as_text(request: Request) -> Response:
    return PlainTextResponse(base64.b64decode(request.path_params["value"]).decode())


def routes() -> list[Route]:
    return [
        Route("/hosts/httpbin/get", echo),
        Route("/hosts/httpbin/post", echo, methods=["POST"]),
        Route("/hosts/httpbin/status/{code:int}", status, methods=["GET", "POST"]),
        Route("/hosts/httpbin/json", slides),
        Route("/hosts/httpbin/base64/{value}", as_text),
        Route("/hosts/jsonplaceholder/posts", posts),
        Route("/hosts/jsonplaceholder/posts/{id:int}", one_post),
        Route("/hosts/jsonplaceholder/users", users),
        Route("/hosts/open-meteo/v1/forecast", forecast),
        Route("/hosts/example.com/", example),
        Route("/hosts/example.com", example),
    ]

"""Arguments of routes that the server provides: the services, the caller, the time."""

import time
from typing import Annotated

from starlette.requests import Request

from noetl.model.identity import Identity
from noetl.model.ids import Micros
from noetl.server.http.callers import IDENTITY
from noetl.server.http.routing import Provided
from noetl.server.services import Services


def get_services(request: Request) -> Services:
    all_services: Services = request.app.state.services
    return all_services


def get_identity(request: Request) -> Identity:
    """The caller, whom the router has found."""
    identity: Identity = request.scope[IDENTITY]
    return identity


def get_request_time(request: Request) -> Micros:
    """The time of the request, for parameters that are relative to it."""
    return time.time_ns() // 1_000


Has = Annotated[Services, Provided(get_services)]
Who = Annotated[Identity, Provided(get_identity)]
Now = Annotated[Micros, Provided(get_request_time)]

"""Dependencies of routes: the services, the caller's identity, and the time of the request.

They are coroutines, because FastAPI runs plain functions in threads.
"""

import time
from typing import Annotated

from fastapi import Depends, Request

from noetl.model.identity import LOCAL_IDENTITY, Identity
from noetl.model.ids import Micros
from noetl.server.services import Services


async def get_services(request: Request) -> Services:
    all_services: Services = request.app.state.services
    return all_services


async def get_identity() -> Identity:
    """The built-in identity, until there is a login."""
    return LOCAL_IDENTITY


async def get_request_time() -> Micros:
    """The time of the request, for parameters that are relative to it."""
    return time.time_ns() // 1_000


Has = Annotated[Services, Depends(get_services)]
Who = Annotated[Identity, Depends(get_identity)]
Now = Annotated[Micros, Depends(get_request_time)]

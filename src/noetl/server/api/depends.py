"""What every route has at hand: the services, who asks, and when. Coroutines, so that no thread is used for them."""

import time
from typing import Annotated

from fastapi import Depends, Request

from noetl.model.identity import LOCAL, Identity
from noetl.model.ids import Micros
from noetl.server.services.all import Services


async def services(request: Request) -> Services:
    found: Services = request.app.state.services
    return found


async def identity() -> Identity:
    """The built-in one, until there is a login."""
    return LOCAL


async def now() -> Micros:
    """When the request came, for what people say relative to it."""
    return time.time_ns() // 1_000


Has = Annotated[Services, Depends(services)]
Who = Annotated[Identity, Depends(identity)]
Now = Annotated[Micros, Depends(now)]

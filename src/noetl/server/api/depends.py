"""What every route has at hand: the services, and who asks. Coroutines, so that no thread is used for them."""

from typing import Annotated

from fastapi import Depends, Request

from noetl.model.identity import LOCAL, Identity
from noetl.server.services.all import Services


async def services(request: Request) -> Services:
    found: Services = request.app.state.services
    return found


async def identity() -> Identity:
    """The built-in one, until there is a login."""
    return LOCAL


Has = Annotated[Services, Depends(services)]
Who = Annotated[Identity, Depends(identity)]

"""How long a command waits for what it needs: a server that starts again, a store that does not answer."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from noetl.model.errors import Unavailable, Unreached

T = TypeVar("T")
TRIES = 8  # five seconds in all: a database may be starting again
_SHORTEST, _LONGEST = 0.05, 2.0  # seconds between two of them


async def patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """Of what may be asked twice. Unavailable after so many tries; those that found no server at all do not count, since then the
    lease says how long this may take: whoever comes back renews it, or calls the command off."""
    left, delay = TRIES, _SHORTEST
    while True:
        try:
            return await ask()
        except Unreached:
            pass
        except Unavailable:
            left -= 1
            if not left:
                raise
        await asyncio.sleep(delay)
        delay = min(2 * delay, _LONGEST)

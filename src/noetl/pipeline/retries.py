"""Retries of idempotent calls while a server starts again, or a store does not answer."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from noetl.backoff import Backoff
from noetl.model.errors import Unavailable, Unreached

T = TypeVar("T")
MAX_TRIES = 8  # in about five seconds, since a database may be starting again
_MIN_DELAY_S, _MAX_DELAY_S = 0.05, 2.0  # seconds between two tries


async def retry_while_unavailable(ask: Callable[[], Awaitable[T]]) -> T:
    """Retry an idempotent call. Raises Unavailable after `MAX_TRIES` failures.

    Tries that reach no server are not counted, because the lease already bounds them: the server
    that comes back renews the lease, or cancels the command.
    """
    left = MAX_TRIES
    backoff = Backoff(_MIN_DELAY_S, _MAX_DELAY_S)
    while True:
        try:
            return await ask()
        except Unreached:
            pass
        except Unavailable:
            left -= 1
            if not left:
                raise
        await asyncio.sleep(backoff.delay)
        backoff.count_failure()

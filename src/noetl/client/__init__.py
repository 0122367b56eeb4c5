"""The client of NoETL: `from noetl.client import Client`. It works over HTTP or in this process.

`Client` blocks, `AsyncClient` is for asyncio. Both answer with the types of `noetl.client.types`.
They and the command are built on `rows`, the operations that answer with JSON objects: `http`
calls a server, `local` calls the services in this process. `noetl.cli` and users import it.
"""

from noetl.client.async_client import AsyncClient
from noetl.client.blocking import Client
from noetl.client.errors import ExecutionFailed, WaitTimeout
from noetl.client.types import (
    EventInfo,
    ExecutionInfo,
    ExecutionReport,
    FailureInfo,
    LogLine,
    PlaybookInfo,
    RegistrationInfo,
    StepInfo,
)
from noetl.model.errors import (
    Conflict,
    Expired,
    InvalidInput,
    NoetlError,
    NotFound,
    Unavailable,
)

__all__ = [
    "AsyncClient",
    "Client",
    "Conflict",
    "EventInfo",
    "ExecutionFailed",
    "ExecutionInfo",
    "ExecutionReport",
    "Expired",
    "FailureInfo",
    "InvalidInput",
    "LogLine",
    "NoetlError",
    "NotFound",
    "PlaybookInfo",
    "RegistrationInfo",
    "StepInfo",
    "Unavailable",
    "WaitTimeout",
]

"""The socket of a server, and the event that stops it. Loads nothing of the server itself."""

import asyncio
import signal
import socket

from noetl.model.errors import InvalidInput
from noetl.server.http.loopback import is_loopback

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8082
# A server that listens on all addresses is called by its own machine at this one.
LOCAL_ADDRESSES = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104


def open_listener(host: str = DEFAULT_HOST, port: int = DEFAULT_PORT) -> socket.socket:
    """A listening socket; port 0 chooses a free port. Raises `InvalidInput` if it cannot listen."""
    if not host.strip():
        raise InvalidInput("no address to listen on", hint="127.0.0.1, or 0.0.0.0 for all")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise InvalidInput(
            f"cannot listen on {host}:{port}: {error.strerror}",
            hint="another server may run already: stop it, or choose another port with --port",
        ) from error
    listener.listen(1024)
    listener.setblocking(False)
    return listener


def format_address(listener: socket.socket, scheme: str = "http") -> str:
    """The address at which this machine calls the server."""
    host, port = listener.getsockname()[:2]
    host = LOCAL_ADDRESSES.get(host, host)
    if ":" in host:
        host = f"[{host}]"
    return f"{scheme}://{host}:{port}"


def is_reachable_from_elsewhere(listener: socket.socket) -> bool:
    return not is_loopback(listener.getsockname()[0])


def stop_on_signals(*numbers: signal.Signals) -> asyncio.Event:
    """An event that the first signal sets.

    The web server does not handle the signals itself, because the shards are given back after it
    has ended.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in numbers or (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    return stop

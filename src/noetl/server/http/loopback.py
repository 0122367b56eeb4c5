"""Which addresses are of this machine only."""

import ipaddress

from noetl.model.errors import InvalidInput


def is_loopback(host: str) -> bool:
    """Whether `host` is a loopback name. It has no port; [::1] may have brackets."""
    name = host.strip("[]").lower()
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def check_bind(host: str) -> None:
    """Refuse to listen on other interfaces: the server has no TLS, so tokens could be read on the way."""
    if not is_loopback(host):
        raise InvalidInput(
            f"will not listen on {host}: the server has no TLS, tokens and data could be read on the way",
            hint="listen on 127.0.0.1, and reach it from elsewhere through a tunnel (ssh -L 8082:127.0.0.1:8082 host)",
        )

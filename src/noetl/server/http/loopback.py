"""Which addresses are of this machine only."""

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether `host` is a loopback name. It has no port; [::1] may have brackets."""
    name = host.strip("[]").lower()
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False

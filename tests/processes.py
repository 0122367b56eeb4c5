"""What processes of ours get in tests: an environment with nothing of the caller's NoETL, and compiled modules that are kept.

A server starts in a third of the time when nobody has to compile it, as it does where it is installed.
"""

import os
import socket
import tempfile
from pathlib import Path

# Short work: compiling well would take longer than running it.
SHORT_JAVA_OPTIONS = "-Xmx1g -XX:TieredStopAtLevel=1"
COMPILED = Path(tempfile.gettempdir()) / f"noetl-test-compiled-{os.getuid()}"


def environment(**more: str) -> dict[str, str]:
    known = {name: value for name, value in os.environ.items() if not name.startswith("NOETL_")}
    known.pop("PYTHONDONTWRITEBYTECODE", None)
    kept = {
        "PYTHONPYCACHEPREFIX": str(COMPILED),
        "NOETL_SPARK_JAVA_OPTIONS": SHORT_JAVA_OPTIONS,
        "NOETL_UI": "skip",  # tests that need the page build it themselves
    }
    return {**known, **kept, **more}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def list_children(pid: int) -> list[int]:
    """Of that process, the oldest first."""
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

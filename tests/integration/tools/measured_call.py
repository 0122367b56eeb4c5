"""Runs one call of the http tool in a process of its own, and prints its failure and how much memory it took.

python -m tests.integration.tools.measured_call URL
"""

import json
import re
import sys
from pathlib import Path

from noetl.tools.http.tool import Http
from tests.unit.tools.calls import LOCAL_GUARD, call, closing, failure, run


def read_memory(field: str) -> int:
    """Bytes of this process: `VmRSS` now, `VmHWM` at most."""
    status = Path("/proc/self/status").read_text()
    found = re.search(rf"^{field}:\s+(\d+) kB$", status, re.M)
    assert found is not None
    return int(found[1]) << 10


if __name__ == "__main__":
    # The first call loads what all calls need.
    run(closing(Http(LOCAL_GUARD), call({"url": "demo://shop/customers"})))
    before = read_memory("VmRSS")
    (outcome,) = run(closing(Http(LOCAL_GUARD), call({"url": sys.argv[1]})))
    error = failure(outcome)
    print(
        json.dumps(
            {
                "code": error.code,
                "message": error.message,
                "http_status": error.http_status,
                "memory": read_memory("VmHWM") - before,
            }
        )
    )

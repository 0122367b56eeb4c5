"""Arrow is imported when a process meets rows, and the client of NATS when one is configured."""

import subprocess
import sys

CODE = """
import asyncio, sys
from noetl.results.formats import records
from noetl.results.tiers.memory import ResultsMemory
from noetl.model.reference import make_address
import noetl.client.local, noetl.runtime.worker, noetl.pipeline, noetl.tools.python.tool

async def test():
    store = ResultsMemory()
    for n, value in enumerate(({"i": 1}, [1] * 1000, [{"a": [1]}] * 1000)):
        assert records.find_records(value) is None
        assert await store.resolve(await store.put(make_address("1", "result", "s", str(n)), value)) == value

asyncio.run(test())
assert not {"pyarrow", "nats"} & set(sys.modules)
"""


def test_a_worker_without_rows_has_no_arrow() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")

"""A server of one's own: started by the first command, lost in the middle of one, ended when nobody needs it."""

import asyncio
import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from noetl.spark.server.process import SparkServerSettings
from noetl.spark.server.server_start import find_answering_server, stop_spark_server
from noetl.spark.server.server_state import SparkServerState
from noetl.spark.step.tool import SparkTool, SparkToolSettings
from tests.integration.spark.conftest import Runner, rows_of
from tests.processes import list_children
from tests.waiting import wait_until

# It waits in its first run only.
HELD = """
from pathlib import Path
from pyspark.sql import functions as F
@F.udf('int')
def held(x):
    import time
    first = not Path({begun!r}).exists()
    Path({begun!r}).touch()
    while first:
        time.sleep(0.1)
    return 1
result = spark.range(0, 1, 1, 1).select(held('id').alias('x'))
"""


@pytest.fixture
def own_runner(loop: asyncio.Runner, tmp_path: Path) -> Iterator[Runner]:
    home = tmp_path / "home"
    tool = SparkTool(
        SparkToolSettings(
            home, serving=SparkServerSettings(java_options="-Xmx512m -XX:TieredStopAtLevel=1")
        )
    )
    yield Runner(tool, loop, tmp_path)
    loop.run(tool.close())
    stop_spark_server(SparkServerState.from_home(home))


def test_a_server_that_is_lost_is_started_again_and_the_command_with_it(
    own_runner: Runner, tmp_path: Path
) -> None:
    place = SparkServerState.from_home(tmp_path / "home")
    begun = tmp_path / "begun"
    printed: list[str] = []
    call = own_runner.call(
        {"code": HELD.format(begun=str(begun))}, log=lambda _, line: printed.append(line)
    )

    async def kill_server() -> Any:
        running = asyncio.ensure_future(own_runner.tool.run(call))
        await wait_until(partial(asyncio.to_thread, begun.exists))
        first = place.read_server()
        assert first is not None
        os.kill(list_children(first.pid)[0], signal.SIGKILL)
        outcome = await running
        second = place.read_server()
        assert second is not None
        assert second.pid != first.pid
        return outcome

    assert rows_of(own_runner.run(kill_server())) == [{"x": 1}]
    assert "spark: the server was lost; once more" in printed

    too_much = "select length(repeat('x', 1500000000 + cast(id as int))) as n from range(1)"  # at once, not bit by bit
    failure = own_runner.failure({"sql": too_much})
    assert failure.code == "SPARK_OUT_OF_MEMORY", failure
    assert own_runner.rows({"sql": "select 1 as x"}) == [
        {"x": 1}
    ]  # it goes on, with the same server or another

    assert stop_spark_server(place)
    assert find_answering_server(place) is None
    assert not stop_spark_server(place)

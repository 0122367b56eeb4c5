"""Sinks as the pipeline calls them: a target, data, and a key of which a second call is a repetition."""

from typing import Any

from noetl.tools.http.tool import Http
from noetl.tools.port import Outcome
from noetl.tools.postgres.tool import Postgres
from noetl.tools.sink.tool import SinkTool
from tests.unit.tools.calls import LOCAL_GUARD, call, run


def outcomes(
    *calls: tuple[dict[str, Any], Any, str], auth: Any = None, **more: Any
) -> list[Outcome]:
    """Of calls made one after the other: target, data, key."""

    async def run_calls() -> list[Outcome]:
        postgres, http = Postgres(), Http(LOCAL_GUARD)
        tool = SinkTool(lambda: postgres, lambda: http, LOCAL_GUARD)
        try:
            return [
                await tool.run(
                    call({"target": target, "data": data}, {}, key=key, auth=auth, **more)
                )
                for target, data, key in calls
            ]
        finally:
            await postgres.close()
            await http.close()

    found: list[Outcome] = run(run_calls())
    return found


def outcome(target: dict[str, Any], data: Any, key: str = "k", **more: Any) -> Outcome:
    return outcomes((target, data, key), **more)[0]

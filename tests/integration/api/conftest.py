"""Tests of the API are coroutines; each runs in a loop of its own, of the kind that servers and workers use."""

import asyncio
import inspect

import pytest
import uvloop

from tests.waiting import HANG_LIMIT_S


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    wanted = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(test(**wanted), HANG_LIMIT_S))
    return True

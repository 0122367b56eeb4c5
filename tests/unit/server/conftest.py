"""Tests of the server are coroutines; each runs in a loop of its own, in which time jumps."""

import inspect

import pytest

from tests.waiting import run_virtually


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    wanted = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    run_virtually(test(**wanted))
    return True

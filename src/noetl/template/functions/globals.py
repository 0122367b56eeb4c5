"""Functions that are called by name: `range()`, `now()`, `uuid()`, `random()`, `dict()`."""

from collections.abc import Mapping

from noetl.template.errors import FailedError
from noetl.template.functions.arguments import require_integer
from noetl.template.functions.calling import Function
from noetl.template.replay_functions import CallMeter
from noetl.template.values import Value

_CALL_OPERATIONS = 8
_NUMBER_BYTES = 40  # of a list that refers to a new number


def _call_now(calls: CallMeter) -> str:
    calls.spend_operations(_CALL_OPERATIONS)
    return calls.require_functions("now").now()


def _call_uuid(calls: CallMeter) -> str:
    calls.spend_operations(_CALL_OPERATIONS)
    return calls.require_functions("uuid").uuid(calls.next_call_number())


def _call_random(calls: CallMeter) -> float:
    calls.spend_operations(_CALL_OPERATIONS)
    return calls.require_functions("random").random(calls.next_call_number())


def _make_range(
    calls: CallMeter,
    start: Value,
    stop: Value = None,
    step: Value = 1,
) -> list[Value]:
    if stop is None:
        start, stop = 0, start
    stride = require_integer(step, "range")
    if stride == 0:
        raise FailedError("range needs a step that is not 0")
    numbers = range(require_integer(start, "range"), require_integer(stop, "range"), stride)
    # len() of a range refuses sizes beyond a machine word, so the size is computed by hand
    direction = 1 if stride > 0 else -1
    size = (numbers.stop - numbers.start + stride - direction) // stride
    calls.spend_items(max(0, size), _NUMBER_BYTES)
    return list(numbers)


def _make_dict(calls: CallMeter, /, **members: Value) -> dict[str, Value]:
    return members


GLOBALS: Mapping[str, Function] = {
    "range": _make_range,
    "now": _call_now,
    "uuid": _call_uuid,
    "random": _call_random,
    "dict": _make_dict,
}
NOT_REPEATABLE = frozenset({"now", "uuid", "random"})

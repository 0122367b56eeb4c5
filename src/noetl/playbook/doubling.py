"""Quotes doubled by hand: `'{{ x | replace("'", "''") }}'`, as SQL needs it where values become text.

Here values never become text, so inside a quoted literal the doubling would be stored. It is left out there.
"""

import copy
from collections.abc import Sequence

from jinja2 import nodes

_KEEPS_TEXT = frozenset({"trim", "upper", "lower", "string", "title", "capitalize", "default", "d"})


def undoubled(node: nodes.Node) -> nodes.Expr | None:
    """The expression without its doubling of quotes; None when it doubles none."""
    match node:
        case nodes.Filter(name="replace", node=nodes.Expr() as subject) if _doubles(node.args):
            return undoubled(subject) or subject
        case nodes.Call(node=nodes.Getattr(attr="replace", node=nodes.Expr() as subject)) if (
            _doubles(node.args)
        ):
            return undoubled(subject) or subject
        case nodes.Filter(node=nodes.Expr() as subject) if node.name in _KEEPS_TEXT:
            inner = undoubled(subject)
            if inner is None:
                return None
            twin = copy.copy(node)
            twin.node = inner
            return twin
        case _:
            return None


def _doubles(args: Sequence[nodes.Expr]) -> bool:
    return [arg.value for arg in args if isinstance(arg, nodes.Const)] == ["'", "''"] and len(
        args
    ) == 2

"""Removes quotes doubled by hand: `'{{ x | replace("'", "''") }}'`.

Authors double quotes for systems that paste values into the text of SQL. NoETL passes values as
parameters, so the doubled quotes would be stored. So they are undone inside quoted literals.
"""

import copy
from collections.abc import Sequence

from jinja2 import nodes

_KEEPS_TEXT = frozenset({"trim", "upper", "lower", "string", "title", "capitalize", "default", "d"})


def remove_doubling(node: nodes.Node) -> nodes.Expr | None:
    """Return the expression without its doubling of quotes, or None if it doubles none."""
    match node:
        case nodes.Filter(name="replace", node=nodes.Expr() as subject) if _is_doubling(node.args):
            return remove_doubling(subject) or subject
        case nodes.Call(node=nodes.Getattr(attr="replace", node=nodes.Expr() as subject)) if (
            _is_doubling(node.args)
        ):
            return remove_doubling(subject) or subject
        case nodes.Filter(node=nodes.Expr() as subject) if node.name in _KEEPS_TEXT:
            inner = remove_doubling(subject)
            if inner is None:
                return None
            twin = copy.copy(node)
            twin.node = inner
            return twin
        case _:
            return None


def _is_doubling(args: Sequence[nodes.Expr]) -> bool:
    """Whether these are the arguments of `replace("'", "''")`."""
    if len(args) != 2:
        return False
    constants = [arg.value for arg in args if isinstance(arg, nodes.Const)]
    return constants == ["'", "''"]

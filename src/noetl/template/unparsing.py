"""The canonical text of an expression."""

from collections.abc import Sequence

from jinja2 import nodes

from noetl.template.values import Value
from noetl.template.writing import write_scalar

# An ImportedName with this prefix stands for a selection. Jinja's parser never makes one.
SELECTION_PREFIX = "selection:"
_SIGNS: dict[type[nodes.Node], str] = {
    nodes.Add: "+",
    nodes.Sub: "-",
    nodes.Mul: "*",
    nodes.Div: "/",
    nodes.FloorDiv: "//",
    nodes.Mod: "%",
    nodes.Pow: "**",
    nodes.And: "and",
    nodes.Or: "or",
}
_COMPARES = {
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "lteq": "<=",
    "gt": ">",
    "gteq": ">=",
    "in": "in",
    "notin": "not in",
}
_ATOMS = (
    nodes.Name,
    nodes.Const,
    nodes.Getattr,
    nodes.Getitem,
    nodes.Call,
    nodes.List,
    nodes.Tuple,
    nodes.Dict,
)


def quote_literal(value: str) -> str:
    """Write a text literal that the lexer reads back unchanged."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    escaped = escaped.replace("\n", "\\n").replace("\r", "\\r")
    return f"'{escaped}'"


def write_literal(value: Value) -> str:
    if value is None:
        return "none"
    if isinstance(value, str):
        return quote_literal(value)
    return write_scalar(value)


def unparse(node: nodes.Node) -> str:
    """Write an expression in its canonical form: parsing the text again gives the same tree.

    Every compound operand is in parentheses.
    """
    match node:
        case nodes.Name():
            return node.name
        case nodes.Const():
            return write_literal(node.value)
        case nodes.Getattr():
            return f"{_write_postfix_operand(node.node)}.{node.attr}"
        case nodes.Getitem():
            return f"{_write_postfix_operand(node.node)}[{_write_index(node.arg)}]"
        case nodes.Call():
            return (
                f"{_write_postfix_operand(node.node)}({_write_arguments(node.args, node.kwargs)})"
            )
        case nodes.Filter():
            subject = ""
            if node.node is not None:
                subject = _write_operand(node.node)
            return f"{subject} | {_write_filter_or_test(node)}"
        case nodes.Test():
            return f"{_write_operand(node.node)} is {_write_filter_or_test(node)}"
        case nodes.List():
            return f"[{_write_list(node.items)}]"
        case nodes.Tuple() if len(node.items) == 1:
            return f"({unparse(node.items[0])},)"
        case nodes.Tuple():
            return f"({_write_list(node.items)})"
        case nodes.Dict():
            pairs = [f"{unparse(pair.key)}: {unparse(pair.value)}" for pair in node.items]
            return "{" + ", ".join(pairs) + "}"
        case nodes.Compare():
            comparisons = [
                f" {_COMPARES[other.op]} {_write_operand(other.expr)}" for other in node.ops
            ]
            return _write_operand(node.expr) + "".join(comparisons)
        case nodes.Concat():
            return " ~ ".join(map(_write_operand, node.nodes))
        case nodes.CondExpr():
            condition = f"{_write_operand(node.expr1)} if {_write_operand(node.test)}"
            if node.expr2 is None:
                return condition
            return f"{condition} else {_write_operand(node.expr2)}"
        case nodes.Not():
            return f"not {_write_operand(node.node)}"
        case nodes.Neg():
            return f"-{_write_operand(node.node)}"
        case nodes.Pos():
            return f"+{_write_operand(node.node)}"
        case nodes.BinExpr():
            return f"{_write_operand(node.left)} {_SIGNS[type(node)]} {_write_operand(node.right)}"
        case nodes.ImportedName():
            return f"<{node.importname}>"
        case _:
            return f"<{type(node).__name__.lower()}>"


def _write_operand(node: nodes.Expr) -> str:
    if isinstance(node, _ATOMS):
        return unparse(node)
    return f"({unparse(node)})"


def _write_postfix_operand(node: nodes.Expr) -> str:
    """Write the operand of `.member`, `[index]` or a call. A number needs parentheses: `(1).x`."""
    if isinstance(node, nodes.Const) and not isinstance(node.value, str):
        return f"({unparse(node)})"
    return _write_operand(node)


def _write_index(node: nodes.Expr) -> str:
    if not isinstance(node, nodes.Slice):
        return unparse(node)
    bounds = f"{_write_bound(node.start)}:{_write_bound(node.stop)}"
    if node.step is None:
        return bounds
    return f"{bounds}:{unparse(node.step)}"


def _write_bound(node: nodes.Expr | None) -> str:
    if node is None:
        return ""
    return unparse(node)


def _write_list(items: Sequence[nodes.Expr]) -> str:
    return ", ".join(map(unparse, items))


def _write_filter_or_test(node: nodes.Filter | nodes.Test) -> str:
    arguments = _write_arguments(node.args, node.kwargs)
    if not arguments:
        return node.name
    return f"{node.name}({arguments})"


def _write_arguments(args: Sequence[nodes.Expr], kwargs: Sequence[nodes.Node]) -> str:
    keywords = [
        f"{pair.key}={unparse(pair.value)}"
        for pair in kwargs
        if isinstance(pair, (nodes.Keyword, nodes.Pair))
    ]
    return ", ".join([*map(unparse, args), *keywords])

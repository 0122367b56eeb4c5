"""Compiles text, outputs and statements: `if`, `for`, `set`."""

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from jinja2 import nodes
from msgspec.structs import replace

from noetl.template.doubling import remove_doubling
from noetl.template.errors import FailedError, ForbiddenError
from noetl.template.expressions import ExpressionCompiler
from noetl.template.members import list_elements
from noetl.template.model import Emit, Evaluate, MarkedValue, RenderingFrame
from noetl.template.operators import is_truthy
from noetl.template.values import Value, kind_of, refuse_undefined, settle, to_plain
from noetl.template.writing import format_as_text


def _reads_loop(node: nodes.Node) -> bool:
    """Whether the statement reads `loop`. A loop inside it has a `loop` of its own."""
    stack = [node]
    while stack:
        part = stack.pop()
        if isinstance(part, nodes.Name) and part.name == "loop":
            return True
        if isinstance(part, nodes.For):
            outside = [part.iter, *part.else_]
            if part.test is not None:
                outside.append(part.test)
            stack.extend(outside)
        else:
            stack.extend(part.iter_child_nodes())
    return False


_STATEMENTS: dict[type[nodes.Node], str] = {
    nodes.AssignBlock: "set block",
    nodes.CallBlock: "call",
    nodes.FilterBlock: "filter block",
    nodes.FromImport: "import",
    nodes.Scope: "autoescape",
}


class StatementCompiler:
    """Turns text, outputs and statements into functions that emit text."""

    def __init__(self, expressions: ExpressionCompiler) -> None:
        self._expressions = expressions

    def compile_block(self, body: Sequence[nodes.Node]) -> Emit:
        emits: list[Emit] = []
        for node in body:
            emits.extend(self._compile_statement(node))
        if len(emits) == 1:
            return emits[0]

        def emit_block(frame: RenderingFrame) -> None:
            for emit in emits:
                emit(frame)

        return emit_block

    def _compile_statement(self, node: nodes.Node) -> Iterator[Emit]:
        match node:
            case nodes.Output():
                for part in node.nodes:
                    if isinstance(part, nodes.TemplateData):
                        yield _compile_data(part.data)
                    else:
                        yield self._compile_output(part)
            case nodes.If():
                yield self._compile_if(node)
            case nodes.For():
                yield self._compile_for(node)
            case nodes.Assign():
                yield self._compile_assign(node)
            case _:
                name = _STATEMENTS.get(type(node), type(node).__name__.lower())
                raise ForbiddenError(
                    f"'{name}' is not part of the template language", line=node.lineno
                )

    def _compile_output(self, node: nodes.Expr) -> Emit:
        evaluate = self._expressions.compile_expression(node)
        evaluate_marked = evaluate
        kind: Literal["value", "identifier", "sql"] = "value"
        if isinstance(node, nodes.Filter) and node.node is not None:
            if node.name == "identifier":
                kind = "identifier"
            elif node.name == "sql":
                kind = "sql"
            if kind != "value":
                evaluate_marked = self._expressions.compile_expression(node.node)
        undoubled_node = remove_doubling(node)
        evaluate_undoubled = None
        if undoubled_node is not None:
            evaluate_undoubled = self._expressions.compile_expression(undoubled_node)
        source = self._expressions.quote(node)
        line = node.lineno

        def emit_output(frame: RenderingFrame) -> None:
            if frame.marks is not None:
                value = evaluate_marked(frame)
                undoubled_value = value
                if evaluate_undoubled is not None:
                    undoubled_value = evaluate_undoubled(frame)
                marked = MarkedValue("", value, kind, source, line, undoubled_value)
                frame.out.append(_record_mark(frame, marked))
                return
            output = evaluate(frame)
            if type(output) is not str:
                output = format_as_text(frame, output)
            frame.memory -= len(output) if output.isascii() else 4 * len(output)
            if frame.memory < 0:
                frame.spend_memory(0)
            frame.out.append(output)

        return emit_output

    def _compile_if(self, node: nodes.If) -> Emit:
        branches = [
            (self._expressions.compile_expression(branch.test), self.compile_block(branch.body))
            for branch in (node, *node.elif_)
        ]
        else_body = self.compile_block(node.else_)

        def emit_if(frame: RenderingFrame) -> None:
            for test, body in branches:
                if is_truthy(test(frame)):
                    return body(frame)
            return else_body(frame)

        return emit_if

    def _compile_for(self, node: nodes.For) -> Emit:
        if node.recursive:
            raise ForbiddenError(
                "recursive loops are not part of the template language", line=node.lineno
            )
        bind = _make_binder(node.target)
        subject = self._expressions.compile_expression(node.iter)
        body = self.compile_block(node.body)
        else_body = self.compile_block(node.else_)
        cost = 2 + self._expressions.count_nodes(node.body)
        test = None
        test_cost = 0
        if node.test is not None:
            test = self._expressions.compile_expression(node.test)
            test_cost = 1 + self._expressions.count_nodes([node.test])
        uses_loop = any(_reads_loop(part) for part in node.body)

        def emit_for(frame: RenderingFrame) -> None:
            outer = frame.local
            entries = list_elements(frame, subject(frame))
            try:
                if test is not None:
                    entries = [
                        entry
                        for entry in entries
                        if _passes_test(frame, outer, bind, entry, test, test_cost)
                    ]
                for index, entry in enumerate(entries):
                    frame.spend_operations(cost + len(outer))
                    frame.local = dict(outer)
                    if uses_loop:
                        frame.local["loop"] = _build_loop(index, len(entries))
                    bind(frame.local, entry)
                    body(frame)
            finally:
                frame.local = outer
            if not entries:
                else_body(frame)

        return emit_for

    def _compile_assign(self, node: nodes.Assign) -> Emit:
        bind = _make_binder(node.target)
        value = self._expressions.compile_expression(node.node)
        return lambda frame: bind(frame.local, refuse_undefined(value(frame)))


def _compile_data(data: str) -> Emit:
    size = len(data) if data.isascii() else 4 * len(data)

    def emit_data(frame: RenderingFrame) -> None:
        frame.memory -= size
        if frame.memory < 0:
            frame.spend_memory(0)
        frame.out.append(data)

    return emit_data


def _record_mark(frame: RenderingFrame, marked: MarkedValue) -> str:
    """Record a marked value in the frame and return its marker."""
    assert frame.marks is not None
    frame.spend_operations(1)
    marker = f"{frame.mark}{len(frame.marks)}{frame.mark}"
    frame.spend_text(len(marker))
    value = to_plain(frame, marked.value)
    undoubled_value = value
    if marked.undoubled is not marked.value:
        undoubled_value = to_plain(frame, marked.undoubled)
    frame.marks.append(replace(marked, marker=marker, value=value, undoubled=undoubled_value))
    return marker


def _make_binder(target: nodes.Node) -> Callable[[dict[str, Value], Value], None]:
    """Return a function that sets the target's names to a value."""
    if isinstance(target, nodes.Name):
        name = target.name

        def bind_name(local: dict[str, Value], value: Value) -> None:
            local[name] = value

        return bind_name
    if not isinstance(target, nodes.Tuple):
        raise ForbiddenError("only names can be set", line=target.lineno)
    binders = [_make_binder(part) for part in target.items]

    def bind_parts(local: dict[str, Value], value: Value) -> None:
        value = settle(value)
        if not isinstance(value, list) or len(value) != len(binders):
            raise FailedError(f"{kind_of(value)} cannot be taken apart into {len(binders)} names")
        for bind, entry in zip(binders, value, strict=True):
            bind(local, entry)

    return bind_parts


def _passes_test(
    frame: RenderingFrame,
    outer: dict[str, Value],
    bind: Callable[[dict[str, Value], Value], None],
    entry: Value,
    test: Evaluate,
    cost: int,
) -> bool:
    frame.spend_operations(cost + len(outer))
    frame.local = dict(outer)
    bind(frame.local, entry)
    return is_truthy(test(frame))


def _build_loop(index: int, size: int) -> dict[str, Value]:
    return {
        "index": index + 1,
        "index0": index,
        "first": index == 0,
        "last": index == size - 1,
        "length": size,
    }

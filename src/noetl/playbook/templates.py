"""Templates: text with `{{ expressions }}` and a few statements, parsed once, evaluated many times.

A text that is exactly one `{{ expression }}` (surrounding white space ignored) yields the value of
that expression; any other template yields text. A text without `{{`, `{%` or `{#` yields itself.
Inside text, values look as in JSON: `true`, `false`, `null`, numbers, compact maps and lists. Text
values are inserted without quotes.

Jinja2 parses the text. Every node of its tree becomes one closure that takes a `RenderingFrame`. A
node without a closure here is not part of the language. Evaluation only reads its scope, so it can
be repeated: a Lazy may raise NeedsData half way, and the caller evaluates again once the data is
loaded. Results may share structure with the scope.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal, TypeAlias

import jinja2
from jinja2 import nodes
from jinja2.parser import Parser

from noetl.playbook.doubling import undoubled
from noetl.playbook.expressions import (
    PLAIN,
    SCALARS,
    SELECTION,
    SERVER_LIMITS,
    FailedError,
    ForbiddenError,
    Functions,
    LimitError,
    Meter,
    RenderLimits,
    TemplateError,
    TemplateSyntaxError,
    Undefined,
    UndefinedError,
    Value,
    add,
    affirm,
    compare,
    contains,
    divide,
    elements,
    equal,
    floor_divide,
    hint_at_similar_name,
    is_lazy,
    is_no_error,
    item,
    kind_of,
    member,
    modulo,
    multiply,
    negate,
    part,
    plain,
    power,
    scalar_text,
    settle,
    subtract,
    text,
    truth,
    unparse,
)
from noetl.playbook.functions import (
    FILTERS,
    GLOBALS,
    LAZY_FILTERS,
    METHOD_NAMES,
    SUBJECT_MAY_BE_UNDEFINED,
    TESTS,
    Calls,
    Function,
    called,
    fitting,
    method,
    named,
)

Scope: TypeAlias = Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class Selection:
    """A part of an expression that needs one step's payload.

    A worker that has it computes the part.
    """

    id: str
    step: str
    source: str  # canonical text of the expression, without braces


# Returns the value that a worker computed for a selection. May return an Undefined or raise.
Selected: TypeAlias = Callable[[Selection], Value]


@dataclass(frozen=True, slots=True)
class Marked:
    """A value that marked text represents by `marker`.

    `source` is the expression that gave the value, `line` is its line in the template. `undoubled`
    is the value without `replace("'", "''")`: see `doubling.py`.
    """

    marker: str
    value: Value
    kind: Literal["value", "identifier", "sql"]
    source: str = ""
    line: int = 1
    undoubled: Value = None


class RenderingFrame(Calls):
    """The state of one rendering: the scope, the template's own names, the remaining budget."""

    __slots__ = ("local", "mark", "marks", "out", "scope", "selected")

    def __init__(
        self,
        scope: Scope,
        limits: RenderLimits,
        functions: Functions | None,
        selected: Selected | None,
    ) -> None:
        self.limits = limits
        self.operations = limits.operations
        self.text = limits.text * 4
        self.scope = scope
        self.selected = selected
        self.functions = functions
        self.call_count = 0
        self.local: dict[str, Value] = {}
        self.out: list[str] = []
        self.mark = ""
        self.marks: list[Marked] | None = None


Evaluate: TypeAlias = Callable[[RenderingFrame], Value]
Emit: TypeAlias = Callable[[RenderingFrame], None]


@dataclass(frozen=True, slots=True)
class Template:
    """A parsed template. Templates with equal source and equal selections are equal.

    `tree` is None if the source is literal text. `expression` is set if the template yields the
    value of one expression. `weight` is the number of nodes in the tree.
    """

    source: str
    selections: tuple[Selection, ...] = ()
    tree: nodes.Template | None = field(default=None, compare=False, repr=False)
    weight: int = field(default=0, compare=False, repr=False)
    expression: nodes.Expr | None = field(default=None, compare=False, repr=False)
    evaluate: Evaluate | None = field(default=None, compare=False, repr=False)
    emit: Emit | None = field(default=None, compare=False, repr=False)

    @property
    def is_literal(self) -> bool:
        return self.tree is None


# --- parsing

_SYNTAX = jinja2.Environment(keep_trailing_newline=True)  # noqa: S701 - it parses, it never renders
_TAG = re.compile(r"\{[{%#]")
_LONGEST = 1_000_000
_DEEPEST = 100
_BRACKETS = 32
_MAX_SHORT_CHARACTERS = 1024
_MAX_CACHED_CHARACTERS = 65_536


def parse(source: str) -> Template:
    if _TAG.search(source) is None:
        return Template(source)
    if len(source) <= _MAX_SHORT_CHARACTERS:
        return _parse_short(source)
    if len(source) <= _MAX_CACHED_CHARACTERS:
        return _parse_long(source)
    return _parse(source)


def parse_expression(source: str) -> Template:
    """Parse an expression that is written without braces, such as the source of a selection."""
    return parse("{{ " + source + " }}")


def _parse(source: str) -> Template:
    try:
        parsed_tree = tree(source)
        return build(source, parsed_tree)
    except TemplateError as exc:
        _locate(exc, source)
        raise


# A tree takes about fifty times the memory of its text, and authors choose the texts. So both
# caches are bounded, and long texts have a small cache of their own.
_parse_short = lru_cache(maxsize=4096)(_parse)
_parse_long = lru_cache(maxsize=64)(_parse)


def tree(source: str) -> nodes.Template:
    """Parse the source into a new syntax tree. Callers may change it, because it is not cached."""
    if len(source) > _LONGEST:
        raise LimitError(f"the template is longer than {_LONGEST} characters")
    try:
        _check_brackets(source)
        return Parser(_SYNTAX, source).parse()
    except jinja2.TemplateSyntaxError as exc:
        raise TemplateSyntaxError(
            exc.message or "not a template", hint=_hint(exc), line=exc.lineno
        ) from None
    except RecursionError:
        raise LimitError("the template is nested too deeply") from None
    except ValueError as exc:  # a number with thousands of digits
        raise TemplateSyntaxError(f"not a template: {exc}") from None


def tokens(source: str) -> Iterator[tuple[int, str, str]]:
    """Yield (line, kind, text) of each token, without the white space that the template strips."""
    yield from _SYNTAX.lexer.tokeniter(source, None)


def _check_brackets(source: str) -> None:
    """Refuse deeply nested brackets, because the parser recurses for each bracket."""
    depth = 0
    for _, kind, operator in tokens(source):
        if kind != "operator":
            continue
        if operator in "([{":
            depth += 1
        elif operator in ")]}":
            depth -= 1
        if depth > _BRACKETS:
            raise LimitError(f"brackets are nested more than {_BRACKETS} deep")


def _hint(exc: jinja2.TemplateSyntaxError) -> str | None:
    message = exc.message or ""
    if "got '='" in message:
        return "compare with =="
    if (
        "unexpected '}'" in message
        or "unexpected end of template" in message
        or "Unexpected end of template" in message
    ):
        return (
            "an expression ends with }}, a statement with %}, and if and for with endif and endfor"
        )
    if "unexpected char '&'" in message or "unexpected char '!'" in message:
        return "write and, or, not"
    if "unexpected '|'" in message:
        return "write or"
    if "'&'" in message:
        return "write and"
    return None


def _locate(exc: TemplateError, source: str) -> None:
    """Set the line and column of a parse error, as exactly as its message allows."""
    exc.template = source
    lines = source.split("\n")
    offset = re.search(r" at (\d+)$", exc.message)
    if offset is not None:
        before = source[: int(offset[1])]
        exc.line = before.count("\n") + 1
        exc.column = len(before) - before.rfind("\n")
        return
    exc.line = min(exc.line or 1, len(lines))
    if exc.column is None:
        line = lines[exc.line - 1]
        quoted_words = re.findall(r"'([^']+)'", exc.message)
        candidates = [*reversed(quoted_words), "{{", "{%"]
        positions = [line.find(word) for word in candidates]
        exc.column = next((position for position in positions if position >= 0), 0) + 1


def build(source: str, tree: nodes.Template, selections: tuple[Selection, ...] = ()) -> Template:
    """Compile a tree. selections.py calls this for trees in which selections replace some parts."""
    weight = _check_tree(tree)
    compiler = _Compiler(tree, {selection.id: selection for selection in selections})
    expression = _only_expression(tree)
    evaluate = None
    if expression is not None:
        evaluate = compiler.expression(expression)
    emit = compiler.block(tree.body)
    return Template(source, selections, tree, weight, expression, evaluate, emit)


def path(template: Template) -> tuple[str, ...] | None:
    """Return the names of a template like `{{ name }}` or `{{ name.member }}`, else None."""
    names: list[str] = []
    node = template.expression
    while isinstance(node, nodes.Getattr):
        names.append(node.attr)
        node = node.node
    if not isinstance(node, nodes.Name):
        return None
    return (node.name, *reversed(names))


def _only_expression(tree: nodes.Template) -> nodes.Expr | None:
    """Return the expression of a template that has nothing else but white space around it."""
    if len(tree.body) != 1:
        return None
    output = tree.body[0]
    if not isinstance(output, nodes.Output):
        return None
    parts = [node for node in output.nodes if not _is_white_space(node)]
    if len(parts) != 1 or isinstance(parts[0], nodes.TemplateData):
        return None
    return parts[0]


def _is_white_space(node: nodes.Node) -> bool:
    return isinstance(node, nodes.TemplateData) and not node.data.strip()


def _check_tree(tree: nodes.Template) -> int:
    """Count the nodes.

    Refuse a deep tree, because compiling and evaluating recurse for each level.
    """
    count = 0
    stack: list[tuple[nodes.Node, int]] = [(tree, 0)]
    while stack:
        node, depth = stack.pop()
        count += 1
        if depth > _DEEPEST:
            raise LimitError(f"the template is nested more than {_DEEPEST} deep", line=node.lineno)
        stack.extend((child, depth + 1) for child in node.iter_child_nodes())
    return count


# --- compiling

_ARITHMETIC: dict[type[nodes.Node], Callable[[Meter, Value, Value], Value]] = {
    nodes.Add: add,
    nodes.Sub: subtract,
    nodes.Mul: multiply,
    nodes.Div: divide,
    nodes.FloorDiv: floor_divide,
    nodes.Mod: modulo,
    nodes.Pow: power,
}
_SIGNED: dict[type[nodes.Node], Callable[[Meter, Value], Value]] = {
    nodes.Neg: negate,
    nodes.Pos: affirm,
}
_COMPARE: dict[str, Callable[[Meter, Value, Value], bool]] = {
    "eq": equal,
    "ne": lambda meter, left, right: not equal(meter, left, right),
    "lt": lambda meter, left, right: compare(meter, left, right) < 0,
    "lteq": lambda meter, left, right: compare(meter, left, right) <= 0,
    "gt": lambda meter, left, right: compare(meter, left, right) > 0,
    "gteq": lambda meter, left, right: compare(meter, left, right) >= 0,
    "in": lambda meter, left, right: contains(meter, right, left),
    "notin": lambda meter, left, right: not contains(meter, right, left),
}
_ABSENT = object()


def bound_names(tree: nodes.Node) -> frozenset[str]:
    """Return the names that the template sets itself."""
    bound = {node.name for node in tree.find_all(nodes.Name) if node.ctx != "load"}
    if tree.find(nodes.For) is not None:
        bound.add("loop")
    return frozenset(bound)


def _names(node: nodes.Node) -> Iterator[nodes.Name]:
    if isinstance(node, nodes.Name):
        yield node
    yield from node.find_all(nodes.Name)


def _weight(*parts: nodes.Node) -> int:
    """Count the nodes at and below these."""
    count = 0
    stack = list(parts)
    while stack:
        count += 1
        stack.extend(stack.pop().iter_child_nodes())
    return count


class _Compiler:
    """Turns each node into a closure.

    Names that the template never sets are read from the scope.
    """

    def __init__(self, tree: nodes.Template, selections: Mapping[str, Selection]) -> None:
        self.bound = bound_names(tree)
        self.selections = selections

    # expressions

    def expression(self, node: nodes.Node) -> Evaluate:
        try:
            return self._expression(node)
        except TemplateError as exc:
            exc.line = exc.line or node.lineno
            raise

    def _expression(self, node: nodes.Node) -> Evaluate:
        match node:
            case nodes.Const():
                return self._const(node)
            case nodes.Name() | nodes.Getattr():
                return self._path(node)
            case nodes.Getitem():
                return self._item(node)
            case nodes.Filter():
                return self._filter(node)
            case nodes.Test():
                return self._test(node)
            case nodes.Call():
                return self._call(node)
            case nodes.Compare():
                return self._compare(node)
            case nodes.And():
                return self._and(node)
            case nodes.Or():
                return self._or(node)
            case nodes.Not():
                inner = self.expression(node.node)
                return lambda frame: not truth(inner(frame))
            case nodes.CondExpr():
                return self._condition(node)
            case nodes.Concat():
                return self._concat(node)
            case nodes.List() | nodes.Tuple():
                return self._list(node)
            case nodes.Dict():
                return self._dict(node)
            case nodes.ImportedName():
                return self._selection(node)
            case nodes.BinExpr() if type(node) in _ARITHMETIC:
                return self._arithmetic(node)
            case nodes.UnaryExpr() if type(node) in _SIGNED:
                sign = _SIGNED[type(node)]
                subject = self.expression(node.node)
                return lambda frame: sign(frame, subject(frame))
            case _:
                raise ForbiddenError(
                    f"'{type(node).__name__.lower()}' is not part of the template language"
                )

    def _const(self, node: nodes.Const) -> Evaluate:
        value = node.value
        if isinstance(value, int) and value.bit_length() > 64:
            raise LimitError("an integer takes more than 64 bits")
        if isinstance(value, float) and value in (float("inf"), float("-inf")):
            raise TemplateSyntaxError("a number is too large")
        return _make_constant(value)

    def _path(self, node: nodes.Name | nodes.Getattr) -> Evaluate:
        """Compile a name and its members into one closure: by far the most frequent expression."""
        keys: list[str] = []
        root: nodes.Expr = node
        while isinstance(root, nodes.Getattr):
            keys.append(root.attr)
            root = root.node
        keys.reverse()
        if not isinstance(root, nodes.Name):
            return self._members(self.expression(root), tuple(keys), unparse(root))
        if root.name in self.bound:
            return self._members(self._local(root.name), tuple(keys), root.name)
        return _scoped(root.name, tuple(keys), unparse(node))

    def _local(self, name: str) -> Evaluate:
        missing = Undefined(name, name)

        def evaluate_local(frame: RenderingFrame) -> Value:
            value = frame.local.get(name, _ABSENT)
            if value is _ABSENT:
                return frame.scope.get(name, missing)
            return value

        return evaluate_local

    def _members(self, root: Evaluate, keys: tuple[str, ...], base: str) -> Evaluate:
        if not keys:
            return root
        expressions = [".".join((base, *keys[: index + 1])) for index in range(len(keys))]
        steps = tuple(zip(keys, expressions, strict=True))

        def evaluate_members(frame: RenderingFrame) -> Value:
            value = root(frame)
            for key, expression in steps:
                value = member(value, key, expression)
            return value

        return evaluate_members

    def _item(self, node: nodes.Getitem) -> Evaluate:
        subject = self.expression(node.node)
        expression = unparse(node)
        if isinstance(node.arg, nodes.Slice):
            bound_nodes = (node.arg.start, node.arg.stop, node.arg.step)
            bounds = [self._optional(bound) for bound in bound_nodes]
            return lambda frame: _slice(frame, subject, bounds, expression)
        if isinstance(node.arg, nodes.Tuple):
            raise ForbiddenError("an index is one value")
        key = self.expression(node.arg)
        return lambda frame: item(subject(frame), settle(key(frame)), expression)

    def _optional(self, node: nodes.Expr | None) -> Evaluate:
        if node is None:
            return _nothing
        return self.expression(node)

    def _filter(self, node: nodes.Filter) -> Evaluate:
        if node.node is None:
            raise ForbiddenError("filter blocks are not part of the template language")
        name = node.name
        function = named(FILTERS, name, "filter")
        subject = self.expression(node.node)
        args, kwargs = self._arguments(node)
        fitting(function, name, len(args), tuple(kwargs))
        self._check_nested(node)
        if name in ("default", "d"):
            return _default(subject, args, kwargs)
        prepare = _as_it_is if function in LAZY_FILTERS else settle
        if not args and not kwargs:
            return lambda frame: called(function, name, frame, prepare(subject(frame)))
        return lambda frame: called(
            function,
            name,
            frame,
            prepare(subject(frame)),
            *[settle(arg(frame)) for arg in args],
            **{key: settle(arg(frame)) for key, arg in kwargs.items()},
        )

    def _check_nested(self, node: nodes.Filter) -> None:
        """Refuse an unknown filter or test that `map`, `select` and the like name by a constant."""
        position = _POSITION_OF_NESTED.get(node.name)
        if position is None or len(node.args) <= position:
            return
        inner = node.args[position]
        if not (isinstance(inner, nodes.Const) and isinstance(inner.value, str)):
            return
        if node.name == "map":
            named(FILTERS, inner.value, "filter")
        else:
            named(TESTS, inner.value, "test")

    def _test(self, node: nodes.Test) -> Evaluate:
        name = node.name
        function = named(TESTS, name, "test")
        subject = self.expression(node.node)
        args, kwargs = self._arguments(node)
        fitting(function, name, len(args), tuple(kwargs))
        if name in SUBJECT_MAY_BE_UNDEFINED:
            return lambda frame: function(frame, subject(frame))
        return lambda frame: called(
            function, name, frame, settle(subject(frame)), *[settle(arg(frame)) for arg in args]
        )

    def _call(self, node: nodes.Call) -> Evaluate:
        args, kwargs = self._arguments(node)
        if isinstance(node.node, nodes.Name):
            return self._call_global(node.node.name, args, kwargs)
        if isinstance(node.node, nodes.Getattr):
            return self._call_method(node.node, args, kwargs)
        raise ForbiddenError(f"'{unparse(node.node)}' cannot be called")

    def _call_global(
        self,
        name: str,
        args: Sequence[Evaluate],
        kwargs: Mapping[str, Evaluate],
    ) -> Evaluate:
        if name not in GLOBALS:
            hint = hint_at_similar_name(name, GLOBALS)
            raise ForbiddenError(f"there is no function '{name}'", hint=hint)
        function = GLOBALS[name]
        fitting(function, name, len(args), tuple(kwargs), leading=1)
        return lambda frame: called(
            function,
            name,
            frame,
            *[settle(arg(frame)) for arg in args],
            **{key: settle(arg(frame)) for key, arg in kwargs.items()},
        )

    def _call_method(
        self,
        node: nodes.Getattr,
        args: Sequence[Evaluate],
        kwargs: Mapping[str, Evaluate],
    ) -> Evaluate:
        name = node.attr
        subject = self.expression(node.node)
        expression = unparse(node)
        if name not in METHOD_NAMES:
            hint = hint_at_similar_name(name, METHOD_NAMES)
            raise ForbiddenError(f"there is no method '{name}'", hint=hint)

        def evaluate_method(frame: RenderingFrame) -> Value:
            value = subject(frame)
            function = _method(value, name, expression)
            value = settle(value)
            function = function or _method(value, name, expression)
            if function is None:
                raise FailedError(f"{kind_of(value)} has no method '{name}', in '{expression}()'")
            fitting(function, name, len(args), tuple(kwargs))
            return called(
                function,
                name,
                frame,
                value,
                *[settle(arg(frame)) for arg in args],
                **{key: settle(arg(frame)) for key, arg in kwargs.items()},
            )

        return evaluate_method

    def _arguments(
        self, node: nodes.Filter | nodes.Test | nodes.Call
    ) -> tuple[list[Evaluate], dict[str, Evaluate]]:
        if node.dyn_args is not None or node.dyn_kwargs is not None:
            raise ForbiddenError("* and ** arguments are not part of the template language")
        kwargs: dict[str, Evaluate] = {}
        for pair in node.kwargs:
            kwargs[str(pair.key)] = self.expression(pair.value)
        return [self.expression(arg) for arg in node.args], kwargs

    def _compare(self, node: nodes.Compare) -> Evaluate:
        first = self.expression(node.expr)
        rest = []
        for operand in node.ops:
            rest.append((_comparison(operand.op), self.expression(operand.expr)))
        if len(rest) == 1:
            operation, other = rest[0]
            return lambda frame: operation(frame, first(frame), other(frame))

        def evaluate_comparisons(frame: RenderingFrame) -> bool:
            left = first(frame)
            for operation, operand in rest:
                right = operand(frame)
                if not operation(frame, left, right):
                    return False
                left = right
            return True

        return evaluate_comparisons

    def _and(self, node: nodes.And) -> Evaluate:
        left = self.expression(node.left)
        right = self.expression(node.right)

        def evaluate_and(frame: RenderingFrame) -> Value:
            value = left(frame)
            if truth(value):
                return right(frame)
            return value

        return evaluate_and

    def _or(self, node: nodes.Or) -> Evaluate:
        left = self.expression(node.left)
        right = self.expression(node.right)

        def evaluate_or(frame: RenderingFrame) -> Value:
            value = left(frame)
            if truth(value):
                return value
            return right(frame)

        return evaluate_or

    def _condition(self, node: nodes.CondExpr) -> Evaluate:
        test = self.expression(node.test)
        consequence = self.expression(node.expr1)
        if node.expr2 is None:
            alternative = _make_constant(Undefined(unparse(node), "the else part"))
        else:
            alternative = self.expression(node.expr2)

        def evaluate_condition(frame: RenderingFrame) -> Value:
            if truth(test(frame)):
                return consequence(frame)
            return alternative(frame)

        return evaluate_condition

    def _concat(self, node: nodes.Concat) -> Evaluate:
        parts = [self.expression(part) for part in node.nodes]

        def evaluate_concat(frame: RenderingFrame) -> str:
            texts = [text(frame, part(frame)) for part in parts]
            frame.make_text(sum(map(len, texts)))
            return "".join(texts)

        return evaluate_concat

    def _list(self, node: nodes.List | nodes.Tuple) -> Evaluate:
        parts = [self.expression(part) for part in node.items]
        return lambda frame: [_made_of(part(frame)) for part in parts]

    def _dict(self, node: nodes.Dict) -> Evaluate:
        pairs = []
        for pair in node.items:
            pairs.append((self.expression(pair.key), self.expression(pair.value)))
        return lambda frame: {
            _key(settle(key(frame))): _made_of(value(frame)) for key, value in pairs
        }

    def _arithmetic(self, node: nodes.BinExpr) -> Evaluate:
        operation = _ARITHMETIC[type(node)]
        left = self.expression(node.left)
        right = self.expression(node.right)
        return lambda frame: operation(frame, left(frame), right(frame))

    def _selection(self, node: nodes.ImportedName) -> Evaluate:
        selection = self.selections[node.importname.removeprefix(SELECTION)]

        def evaluate_selection(frame: RenderingFrame) -> Value:
            if frame.selected is None:
                raise FailedError(
                    f"'{selection.source}' was cut out and no selected values were given"
                )
            return frame.selected(selection)

        return evaluate_selection

    # statements

    def block(self, body: Sequence[nodes.Node]) -> Emit:
        emits: list[Emit] = []
        for node in body:
            emits.extend(self._statement(node))
        if len(emits) == 1:
            return emits[0]

        def emit_block(frame: RenderingFrame) -> None:
            for emit in emits:
                emit(frame)

        return emit_block

    def _statement(self, node: nodes.Node) -> Iterator[Emit]:
        match node:
            case nodes.Output():
                for part in node.nodes:
                    if isinstance(part, nodes.TemplateData):
                        yield _data(part.data)
                    else:
                        yield self._output(part)
            case nodes.If():
                yield self._if(node)
            case nodes.For():
                yield self._for(node)
            case nodes.Assign():
                yield self._assign(node)
            case _:
                name = _STATEMENTS.get(type(node), type(node).__name__.lower())
                raise ForbiddenError(
                    f"'{name}' is not part of the template language", line=node.lineno
                )

    def _output(self, node: nodes.Expr) -> Emit:
        evaluate = self.expression(node)
        evaluate_marked = evaluate
        kind: Literal["value", "identifier", "sql"] = "value"
        if isinstance(node, nodes.Filter) and node.node is not None:
            if node.name == "identifier":
                kind = "identifier"
            elif node.name == "sql":
                kind = "sql"
            if kind != "value":
                evaluate_marked = self.expression(node.node)
        undoubled_node = undoubled(node)
        evaluate_undoubled = None
        if undoubled_node is not None:
            evaluate_undoubled = self.expression(undoubled_node)
        source = unparse(node)
        line = node.lineno

        def emit_output(frame: RenderingFrame) -> None:
            if frame.marks is not None:
                value = evaluate_marked(frame)
                undoubled_value = value
                if evaluate_undoubled is not None:
                    undoubled_value = evaluate_undoubled(frame)
                marked = Marked("", value, kind, source, line, undoubled_value)
                frame.out.append(_mark(frame, marked))
                return
            output = evaluate(frame)
            if type(output) is not str:
                output = text(frame, output)
            frame.text -= len(output)
            if frame.text < 0:
                raise LimitError(
                    f"the template makes more than {frame.limits.text} characters of text"
                )
            frame.out.append(output)

        return emit_output

    def _if(self, node: nodes.If) -> Emit:
        branches = [
            (self.expression(branch.test), self.block(branch.body))
            for branch in (node, *node.elif_)
        ]
        else_body = self.block(node.else_)

        def emit_if(frame: RenderingFrame) -> None:
            for test, body in branches:
                if truth(test(frame)):
                    return body(frame)
            return else_body(frame)

        return emit_if

    def _for(self, node: nodes.For) -> Emit:
        if node.recursive:
            raise ForbiddenError(
                "recursive loops are not part of the template language", line=node.lineno
            )
        bind = _binder(node.target)
        subject = self.expression(node.iter)
        body = self.block(node.body)
        else_body = self.block(node.else_)
        cost = 1 + _weight(*node.body)
        test = None
        test_cost = 0
        if node.test is not None:
            test = self.expression(node.test)
            test_cost = _weight(node.test)
        names_in_body = {name.name for part in node.body for name in _names(part)}
        uses_loop = "loop" in names_in_body

        def emit_for(frame: RenderingFrame) -> None:
            outer = frame.local
            entries = elements(frame, subject(frame))
            try:
                if test is not None:
                    entries = [
                        entry
                        for entry in entries
                        if _passes(frame, outer, bind, entry, test, test_cost)
                    ]
                for index, entry in enumerate(entries):
                    frame.work(cost + len(outer))
                    frame.local = dict(outer)
                    if uses_loop:
                        frame.local["loop"] = _loop(index, len(entries))
                    bind(frame.local, entry)
                    body(frame)
            finally:
                frame.local = outer
            if not entries:
                else_body(frame)

        return emit_for

    def _assign(self, node: nodes.Assign) -> Emit:
        bind = _binder(node.target)
        value = self.expression(node.node)
        return lambda frame: bind(frame.local, _made_of(value(frame)))


# Filters that take the name of a filter or test: the position of that argument.
_POSITION_OF_NESTED = {
    "map": 0,
    "select": 0,
    "reject": 0,
    "selectattr": 1,
    "rejectattr": 1,
}

_STATEMENTS: dict[type[nodes.Node], str] = {
    nodes.AssignBlock: "set block",
    nodes.CallBlock: "call",
    nodes.FilterBlock: "filter block",
    nodes.FromImport: "import",
    nodes.Scope: "autoescape",
}


# --- functions that closures call


def _comparison(name: str) -> Callable[[RenderingFrame, Value, Value], bool]:
    """Return the comparison operator of this name.

    The error of a call that did not fail equals nothing, is in nothing and has no order: comparing
    with it gives true for `!=` and `not in`, and false for every other operator.
    """
    operation = _COMPARE[name]
    is_negation = name in ("ne", "notin")

    def compare_operands(frame: RenderingFrame, left: Value, right: Value) -> bool:
        if type(left) is Undefined or type(right) is Undefined:
            if is_no_error(left) or is_no_error(right):
                return is_negation
        return operation(frame, left, right)

    return compare_operands


def _scoped(root: str, keys: tuple[str, ...], expression: str) -> Evaluate:
    """Read a name of the scope and the members below it."""
    missing = Undefined(expression, root)
    if not keys:
        return lambda frame: frame.scope.get(root, missing)

    def evaluate_path(frame: RenderingFrame) -> Value:
        value = frame.scope.get(root, _ABSENT)
        if value is _ABSENT:
            return missing
        for index, key in enumerate(keys):
            if type(value) is dict and key in value:
                value = value[key]
                continue
            value = member(value, key, expression)
            if type(value) is Undefined and value.facts is None:
                if value.missing == expression:
                    missing_path = ".".join((root, *keys[: index + 1]))
                    return Undefined(expression, missing_path, value.absent)
                return value
        return value

    return evaluate_path


def _make_constant(value: Value) -> Evaluate:
    return lambda frame: value


def _nothing(frame: RenderingFrame) -> None:
    return None


def _no_text(frame: RenderingFrame) -> str:
    return ""


def _as_it_is(value: Value) -> Value:
    """Settle a value for a filter that accepts lazy values."""
    if type(value) in PLAIN or is_lazy(value):
        return value
    return settle(value)


def _made_of(value: Value) -> Value:
    """Refuse undefined in a list or map that the template makes, and in names it sets.

    Lazy is fine.
    """
    if type(value) is Undefined:
        undefined: Undefined = value
        raise undefined.error()
    return value


def _key(value: Value) -> str:
    if isinstance(value, str):
        return value
    raise FailedError(f"{kind_of(value)} cannot be a key, keys are text")


def _slice(
    frame: RenderingFrame,
    subject: Evaluate,
    bounds: Sequence[Evaluate],
    expression: str,
) -> Value:
    value = subject(frame)
    if type(value) is Undefined:
        return value
    start, stop, step = (settle(bound(frame)) for bound in bounds)
    for bound in (start, stop, step):
        is_whole_number = isinstance(bound, int) and not isinstance(bound, bool)
        if bound is not None and not is_whole_number:
            raise FailedError(f"{kind_of(bound)} cannot bound a slice, in '{expression}'")
    if step == 0:
        raise FailedError(f"a slice needs a step that is not 0, in '{expression}'")
    return part(frame, value, slice(start, stop, step), expression)


def _default(
    subject: Evaluate,
    args: Sequence[Evaluate],
    kwargs: Mapping[str, Evaluate],
) -> Evaluate:
    """Compile the filter `default`, the only one that accepts an undefined subject."""
    positional = dict(zip(("default_value", "boolean"), args, strict=False))
    arguments = {**positional, **kwargs}
    default_value = arguments.get("default_value", _no_text)
    replaces_false = arguments.get("boolean", _nothing)

    def evaluate_default(frame: RenderingFrame) -> Value:
        value = subject(frame)
        if type(value) is Undefined:
            return default_value(frame)
        if truth(replaces_false(frame)) and not truth(value):
            return default_value(frame)
        return value

    return evaluate_default


def _method(value: Value, name: str, expression: str) -> Function | None:
    """Return the method of a value.

    Fails if the value has a member of this name, because data wins.
    """
    if isinstance(value, Mapping) or is_lazy(value):
        found = member(value, name, expression)
        if type(found) is not Undefined:
            raise FailedError(
                f"'{expression}' is data and cannot be called", hint=f"write | {name}"
            )
    return method(value, name)


def _data(data: str) -> Emit:
    size = len(data)

    def emit_data(frame: RenderingFrame) -> None:
        frame.text -= size
        if frame.text < 0:
            raise LimitError(f"the template makes more than {frame.limits.text} characters of text")
        frame.out.append(data)

    return emit_data


def _mark(frame: RenderingFrame, marked: Marked) -> str:
    """Record a marked value in the frame and return its marker."""
    assert frame.marks is not None
    frame.work(1)
    marker = f"{frame.mark}{len(frame.marks)}{frame.mark}"
    frame.make_text(len(marker))
    value = plain(frame, marked.value)
    undoubled_value = value
    if marked.undoubled is not marked.value:
        undoubled_value = plain(frame, marked.undoubled)
    frame.marks.append(replace(marked, marker=marker, value=value, undoubled=undoubled_value))
    return marker


def _binder(target: nodes.Node) -> Callable[[dict[str, Value], Value], None]:
    """Return a function that sets the target's names to a value."""
    if isinstance(target, nodes.Name):
        name = target.name

        def bind_name(local: dict[str, Value], value: Value) -> None:
            local[name] = value

        return bind_name
    if not isinstance(target, nodes.Tuple):
        raise ForbiddenError("only names can be set", line=target.lineno)
    binders = [_binder(part) for part in target.items]

    def bind_parts(local: dict[str, Value], value: Value) -> None:
        value = settle(value)
        if not isinstance(value, list) or len(value) != len(binders):
            raise FailedError(f"{kind_of(value)} cannot be taken apart into {len(binders)} names")
        for bind, entry in zip(binders, value, strict=True):
            bind(local, entry)

    return bind_parts


def _passes(
    frame: RenderingFrame,
    outer: dict[str, Value],
    bind: Callable[[dict[str, Value], Value], None],
    entry: Value,
    test: Evaluate,
    cost: int,
) -> bool:
    frame.work(cost + len(outer))
    frame.local = dict(outer)
    bind(frame.local, entry)
    return truth(test(frame))


def _loop(index: int, size: int) -> dict[str, Value]:
    return {
        "index": index + 1,
        "index0": index,
        "first": index == 0,
        "last": index == size - 1,
        "length": size,
    }


# --- rendering


def _run(template: Template, frame: RenderingFrame) -> Value:
    """Return the value of a template.

    It is lazy if the template is one expression with a lazy value.
    """
    if template.tree is None:
        return template.source
    try:
        frame.work(template.weight)
        if template.evaluate is not None:
            value = template.evaluate(frame)
            if type(value) in SCALARS or is_lazy(value):
                return value
            return plain(frame, value)
        return _emitted(template, frame)
    except TemplateError as exc:
        _place(exc, template.source)
        raise


def _place(exc: TemplateError, source: str) -> None:
    """Record which template failed, and where the missing name is in it. The first place stays."""
    if exc.template is not None:
        return
    exc.template = source
    if not isinstance(exc, UndefinedError):
        return
    offset = source.find(exc.missing)
    if offset >= 0:
        exc.line = source.count("\n", 0, offset) + 1
        exc.column = offset - source.rfind("\n", 0, offset)


def _emitted(template: Template, frame: RenderingFrame) -> str:
    assert template.emit is not None
    frame.out = []
    template.emit(frame)
    size = sum(map(len, frame.out))
    if size > frame.limits.text:
        raise LimitError(f"the template makes more than {frame.limits.text} characters of text")
    return "".join(frame.out)


def evaluate(
    template: Template | str,
    scope: Scope,
    *,
    limits: RenderLimits = SERVER_LIMITS,
    functions: Functions | None = None,
    selected: Selected | None = None,
) -> Value:
    """Like `render`, but a lazy value stays lazy: the caller gets the reference, not its data."""
    if isinstance(template, str):
        template = parse(template)
    return _run(template, RenderingFrame(scope, limits, functions, selected))


def probe(
    template: Template | str,
    scope: Scope,
    *,
    limits: RenderLimits = SERVER_LIMITS,
    functions: Functions | None = None,
    selected: Selected | None = None,
) -> Value:
    """Like `evaluate`, but returns an undefined value as an Undefined instead of raising."""
    if isinstance(template, str):
        template = parse(template)
    frame = RenderingFrame(scope, limits, functions, selected)
    if template.evaluate is None:
        return _run(template, frame)
    try:
        frame.work(template.weight)
        value = template.evaluate(frame)
        if isinstance(value, Undefined) or is_lazy(value):
            return value
        return plain(frame, value)
    except TemplateError as exc:
        _place(exc, template.source)
        raise


def render(
    template: Template | str,
    scope: Scope,
    *,
    limits: RenderLimits = SERVER_LIMITS,
    functions: Functions | None = None,
    selected: Selected | None = None,
) -> Value:
    if isinstance(template, str):
        template = parse(template)
    if template.tree is None:
        return template.source
    frame = RenderingFrame(scope, limits, functions, selected)
    value = _run(template, frame)
    if type(value) in PLAIN:
        return value
    return plain(frame, value)


def render_value(
    value: Value,
    scope: Scope,
    *,
    limits: RenderLimits = SERVER_LIMITS,
    functions: Functions | None = None,
    selected: Selected | None = None,
) -> Value:
    """Render every text in a structure, keys included, with one budget for all of them."""
    return _rendered(value, RenderingFrame(scope, limits, functions, selected), 0)


def parsed(value: Value) -> Value:
    """Parse every text value of a structure that is rendered many times."""
    if isinstance(value, str):
        return parse(value)
    if isinstance(value, Mapping):
        return {key: parsed(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [parsed(part) for part in value]
    return value


def _rendered(value: Value, frame: RenderingFrame, depth: int) -> Value:
    kind = type(value)
    if kind is Template or kind is str or isinstance(value, (str, Template)):
        template = value if kind is Template else parse(value)
        rendered = _run(template, frame)
        if type(rendered) in PLAIN:
            return rendered
        return plain(frame, rendered)
    if kind is dict or isinstance(value, (list, tuple, Mapping)):
        if depth >= frame.limits.depth:
            raise LimitError(f"a value is nested more than {frame.limits.depth} deep")
        frame.work(1 + len(value))
    if kind is dict or isinstance(value, Mapping):
        rendered = {}
        for key, part in value.items():
            try:
                name = _rendered_key(key, frame)
                rendered[name] = _rendered(part, frame, depth + 1)
            except TemplateError as error:
                error.path = f".{key}{error.path}"
                raise
        if len(rendered) != len(value):
            raise FailedError("two keys of a map render to the same text")
        return rendered
    if isinstance(value, (list, tuple)):
        return _rendered_list(value, frame, depth)
    return plain(frame, value)


def _rendered_list(parts: Sequence[Value], frame: RenderingFrame, depth: int) -> list[Value]:
    rendered: list[Value] = []
    for entry in parts:
        try:
            rendered.append(_rendered(entry, frame, depth + 1))
        except TemplateError as error:
            error.path = f"[{len(rendered)}]{error.path}"
            raise
    return rendered


def _rendered_key(key: Any, frame: RenderingFrame) -> str:
    if isinstance(key, str):
        if "{" not in key:
            return key
        key = settle(_run(parse(key), frame))
    if isinstance(key, (list, dict)) or key is None:
        raise FailedError(f"{kind_of(key)} cannot be a key, keys are text")
    return scalar_text(key)


_WORDS = {
    "true": True,
    "yes": True,
    "1": True,
    "false": False,
    "no": False,
    "0": False,
}


def guard(
    template: Template | Value,
    scope: Scope,
    *,
    limits: RenderLimits = SERVER_LIMITS,
    functions: Functions | None = None,
    selected: Selected | None = None,
) -> bool:
    """Evaluate a `when`. See `verdict` for how its value becomes a bool.

    A value that is absent, such as the error of a success, counts as false instead of raising.
    """
    value: Value = template
    if isinstance(template, (str, Template)):
        try:
            value = render(template, scope, limits=limits, functions=functions, selected=selected)
        except UndefinedError:
            if is_absent(template, scope, limits=limits, functions=functions, selected=selected):
                return False
            raise
    return verdict(value)


def is_absent(template: Template | str, scope: Scope, **more: Any) -> bool:
    """Whether the value is missing by design, such as the error of a success."""
    value = probe(template, scope, **more)
    return isinstance(value, Undefined) and bool(value.absent)


def verdict(value: Value) -> bool:
    """Convert the value of a guard to a bool.

    The texts true, yes, 1, false, no and 0 (in any case) mean what they say. Any other value counts
    by its truth: null, 0, and empty texts, lists and maps are false.
    """
    if isinstance(value, str):
        word = value.strip().lower()
        return _WORDS.get(word, bool(value))
    return bool(value)


def render_marked(
    template: Template | str,
    scope: Scope,
    *,
    limits: RenderLimits = SERVER_LIMITS,
    functions: Functions | None = None,
    selected: Selected | None = None,
) -> tuple[str, list[Marked]]:
    """Return the text with a marker in place of every `{{ expression }}`, and the marked values.

    The markers cannot occur in the template's own text, and no value is part of the text. So a tool
    can replace each marker by a query parameter. If the last filter of an expression is
    `identifier` or `sql`, it sets the kind, and the marked value is the input of that filter.
    """
    if isinstance(template, str):
        template = parse(template)
    if template.tree is None:
        return template.source, []
    frame = RenderingFrame(scope, limits, functions, selected)
    frame.mark = _free_character(template.source)
    frame.marks = []
    try:
        frame.work(template.weight)
        return _emitted(template, frame), frame.marks
    except TemplateError as exc:
        _place(exc, template.source)
        raise


def _free_character(source: str) -> str:
    """Return a character of Unicode's private use area that the source does not contain."""
    for code in range(0xE000, 0xF900):
        character = chr(code)
        if character not in source:
            return character
    raise ForbiddenError("the template uses every private character")

"""Templates: text with `{{ expressions }}` and a few statements, parsed once, evaluated many times.

A text that is exactly one `{{ expression }}` (surrounding white space ignored) yields the expression's value; any
other template yields text. A text without `{{`, `{%` or `{#` is itself. In text, values are written as JSON writes
them: `true`, `false`, `null`, numbers, compact maps and lists; text as it is.

Jinja2 parses; every node of its tree becomes one closure over a `Frame`, and a node that has no closure here is not
part of the language. Evaluation reads its scope, changes nothing and can be repeated: a Lazy may raise NeedsData half
way, and the caller evaluates again when the data is there. Results may share structure with the scope.
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
    suggest,
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
    """A part of an expression that depends on one step's payload, computed where that payload is."""

    id: str
    step: str
    source: str  # canonical text of the expression, without braces


Selected: TypeAlias = Callable[[Selection], Value]  # may return an Undefined or raise


@dataclass(frozen=True, slots=True)
class Marked:
    """A value that stands in marked text as `marker`.

    `source` is the expression that gave it, `line` the line of the template in which it stands. `undoubled` is the value without
    `replace("'", "''")`: see `doubling.py`."""

    marker: str
    value: Value
    kind: Literal["value", "identifier", "sql"]
    source: str = ""
    line: int = 1
    undoubled: Value = None


class RenderingFrame(Calls):
    """One rendering: the scope, what the template bound itself, and what is left of the budget."""

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
        self.made = 0
        self.local: dict[str, Value] = {}
        self.out: list[str] = []
        self.mark = ""
        self.marks: list[Marked] | None = None


Evaluate: TypeAlias = Callable[[RenderingFrame], Value]
Emit: TypeAlias = Callable[[RenderingFrame], None]


@dataclass(frozen=True, slots=True)
class Template:
    """A parsed template. Two of the same source (and the same parts cut out) are the same."""

    source: str
    selections: tuple[Selection, ...] = ()
    tree: nodes.Template | None = field(
        default=None, compare=False, repr=False
    )  # None: the source is a literal
    weight: int = field(default=0, compare=False, repr=False)
    expression: nodes.Expr | None = field(
        default=None, compare=False, repr=False
    )  # set when it yields a value
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


def parse(source: str) -> Template:
    if _TAG.search(source) is None:
        return Template(source)
    if len(source) <= 1024:
        return _parse_short(source)
    return _parse_long(source) if len(source) <= 65_536 else _parse(source)


def parse_expression(source: str) -> Template:
    """A bare expression, as selections carry it."""
    return parse("{{ " + source + " }}")


def _parse(source: str) -> Template:
    try:
        parsed_tree = tree(source)
        return build(source, parsed_tree)
    except TemplateError as exc:
        _locate(exc, source)
        raise


# A tree takes some fifty times the memory of its text, and authors choose the texts: two caches, each bounded.
_parse_short = lru_cache(maxsize=4096)(_parse)
_parse_long = lru_cache(maxsize=64)(_parse)


def tree(source: str) -> nodes.Template:
    """The syntax tree of the source; one of its own for each caller."""
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
    """(line, kind, text) of each token; white space that the template strips is left out."""
    yield from _SYNTAX.lexer.tokeniter(source, None)


def _check_brackets(source: str) -> None:
    """The parser recurses for brackets: refuse deep ones by counting, not by running out of stack."""
    depth = 0
    for _, token, value in tokens(source):
        if token != "operator":
            continue
        depth += (value in "([{") - (value in ")]}")
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
    return "write and" if "'&'" in message else None


def _locate(exc: TemplateError, source: str) -> None:
    """Line and column inside the template, as near as the message tells."""
    exc.template = source
    lines = source.split("\n")
    at = re.search(r" at (\d+)$", exc.message)
    if at is not None:
        before = source[: int(at[1])]
        exc.line, exc.column = before.count("\n") + 1, len(before) - before.rfind("\n")
        return
    exc.line = min(exc.line or 1, len(lines))
    if exc.column is None:
        line = lines[exc.line - 1]
        words = re.findall(r"'([^']+)'", exc.message)
        found = [line.find(word) for word in reversed(words)] + [
            line.find("{{"),
            line.find("{%"),
            0,
        ]
        exc.column = next(position for position in found if position >= 0) + 1


def build(source: str, tree: nodes.Template, selections: tuple[Selection, ...] = ()) -> Template:
    """Compile a tree. selections.py calls this for trees with parts cut out."""
    weight = _check_tree(tree)
    compiler = _Compiler(tree, {selection.id: selection for selection in selections})
    expression = _only_expression(tree)
    return Template(
        source,
        selections,
        tree,
        weight,
        expression,
        compiler.expression(expression) if expression is not None else None,
        compiler.block(tree.body),
    )


def path(template: Template) -> tuple[str, ...] | None:
    """The names of a template that is `{{ name }}` or `{{ name.member }}`; None of any other."""
    names: list[str] = []
    node = template.expression
    while isinstance(node, nodes.Getattr):
        names.append(node.attr)
        node = node.node
    return (node.name, *reversed(names)) if isinstance(node, nodes.Name) else None


def _only_expression(tree: nodes.Template) -> nodes.Expr | None:
    if len(tree.body) != 1 or not isinstance(output := tree.body[0], nodes.Output):
        return None
    solid = [
        node
        for node in output.nodes
        if not (isinstance(node, nodes.TemplateData) and not node.data.strip())
    ]
    return solid[0] if len(solid) == 1 and not isinstance(solid[0], nodes.TemplateData) else None


def _check_tree(tree: nodes.Template) -> int:
    """Count the nodes and refuse a deep tree, so that neither compiling nor evaluating can run out of stack."""
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
    """Names that the template itself gives a value."""
    stored = {node.name for node in tree.find_all(nodes.Name) if node.ctx != "load"}
    return frozenset(stored if tree.find(nodes.For) is None else stored | {"loop"})


def _names(node: nodes.Node) -> Iterator[nodes.Name]:
    if isinstance(node, nodes.Name):
        yield node
    yield from node.find_all(nodes.Name)


def _weight(*parts: nodes.Node) -> int:
    count, stack = 0, list(parts)
    while stack:
        count += 1
        stack.extend(stack.pop().iter_child_nodes())
    return count


class _Compiler:
    """Turns each node into a closure; names that the template never binds are read from the scope directly."""

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
                sign, subject = _SIGNED[type(node)], self.expression(node.node)
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
        return lambda frame: value

    def _path(self, node: nodes.Name | nodes.Getattr) -> Evaluate:
        """A name and the members below it, followed in one closure: by far the most frequent expression."""
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

        def evaluate(frame: RenderingFrame) -> Value:
            value = frame.local.get(name, _ABSENT)
            return frame.scope.get(name, missing) if value is _ABSENT else value

        return evaluate

    def _members(self, root: Evaluate, keys: tuple[str, ...], base: str) -> Evaluate:
        if not keys:
            return root
        steps = tuple((key, ".".join((base, *keys[: at + 1]))) for at, key in enumerate(keys))

        def evaluate(frame: RenderingFrame) -> Value:
            value = root(frame)
            for key, expression in steps:
                value = member(value, key, expression)
            return value

        return evaluate

    def _item(self, node: nodes.Getitem) -> Evaluate:
        subject, expression = self.expression(node.node), unparse(node)
        if isinstance(node.arg, nodes.Slice):
            bounds = [
                self._optional(bound) for bound in (node.arg.start, node.arg.stop, node.arg.step)
            ]
            return lambda frame: _slice(frame, subject, bounds, expression)
        if isinstance(node.arg, nodes.Tuple):
            raise ForbiddenError("an index is one value")
        key = self.expression(node.arg)
        return lambda frame: item(subject(frame), settle(key(frame)), expression)

    def _optional(self, node: nodes.Expr | None) -> Evaluate:
        return self.expression(node) if node is not None else _nothing

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
        ready = _as_it_is if function in LAZY_FILTERS else settle
        if not args and not kwargs:
            return lambda frame: called(function, name, frame, ready(subject(frame)))
        return lambda frame: called(
            function,
            name,
            frame,
            ready(subject(frame)),
            *[settle(arg(frame)) for arg in args],
            **{key: settle(arg(frame)) for key, arg in kwargs.items()},
        )

    def _check_nested(self, node: nodes.Filter) -> None:
        """The filter or test that map, select and their kin apply, when it is written out."""
        at = {"map": 0, "select": 0, "reject": 0, "selectattr": 1, "rejectattr": 1}.get(node.name)
        if at is None or len(node.args) <= at:
            return
        inner = node.args[at]
        if not (isinstance(inner, nodes.Const) and isinstance(inner.value, str)):
            return
        table, what = (FILTERS, "filter") if node.name == "map" else (TESTS, "test")
        named(table, inner.value, what)

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
        self, name: str, args: Sequence[Evaluate], kwargs: Mapping[str, Evaluate]
    ) -> Evaluate:
        if name not in GLOBALS:
            near = suggest(name, GLOBALS)
            raise ForbiddenError(
                f"there is no function '{name}'", hint=f"did you mean '{near}'?" if near else None
            )
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
        self, node: nodes.Getattr, args: Sequence[Evaluate], kwargs: Mapping[str, Evaluate]
    ) -> Evaluate:
        name, subject, expression = node.attr, self.expression(node.node), unparse(node)
        if name not in METHOD_NAMES:
            near = suggest(name, METHOD_NAMES)
            hint = f"did you mean '{near}'?" if near else None
            raise ForbiddenError(f"there is no method '{name}'", hint=hint)

        def evaluate(frame: RenderingFrame) -> Value:
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

        return evaluate

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
        rest = [(_comparison(operand.op), self.expression(operand.expr)) for operand in node.ops]
        if len(rest) == 1:
            operation, other = rest[0]
            return lambda frame: operation(frame, first(frame), other(frame))

        def evaluate(frame: RenderingFrame) -> bool:
            left = first(frame)
            for operation, operand in rest:
                right = operand(frame)
                if not operation(frame, left, right):
                    return False
                left = right
            return True

        return evaluate

    def _and(self, node: nodes.And) -> Evaluate:
        left, right = self.expression(node.left), self.expression(node.right)

        def evaluate(frame: RenderingFrame) -> Value:
            value = left(frame)
            return right(frame) if truth(value) else value

        return evaluate

    def _or(self, node: nodes.Or) -> Evaluate:
        left, right = self.expression(node.left), self.expression(node.right)

        def evaluate(frame: RenderingFrame) -> Value:
            value = left(frame)
            return value if truth(value) else right(frame)

        return evaluate

    def _condition(self, node: nodes.CondExpr) -> Evaluate:
        test, then = self.expression(node.test), self.expression(node.expr1)
        missing = Undefined(unparse(node), "the else part")
        otherwise = self.expression(node.expr2) if node.expr2 is not None else lambda frame: missing
        return lambda frame: then(frame) if truth(test(frame)) else otherwise(frame)

    def _concat(self, node: nodes.Concat) -> Evaluate:
        parts = [self.expression(part) for part in node.nodes]

        def evaluate(frame: RenderingFrame) -> str:
            made = [text(frame, part(frame)) for part in parts]
            frame.make_text(sum(map(len, made)))
            return "".join(made)

        return evaluate

    def _list(self, node: nodes.List | nodes.Tuple) -> Evaluate:
        parts = [self.expression(part) for part in node.items]
        return lambda frame: [_made_of(part(frame)) for part in parts]

    def _dict(self, node: nodes.Dict) -> Evaluate:
        pairs = [(self.expression(pair.key), self.expression(pair.value)) for pair in node.items]
        return lambda frame: {
            _key(settle(key(frame))): _made_of(value(frame)) for key, value in pairs
        }

    def _arithmetic(self, node: nodes.BinExpr) -> Evaluate:
        operation = _ARITHMETIC[type(node)]
        left, right = self.expression(node.left), self.expression(node.right)
        return lambda frame: operation(frame, left(frame), right(frame))

    def _selection(self, node: nodes.ImportedName) -> Evaluate:
        selection = self.selections[node.importname.removeprefix(SELECTION)]

        def evaluate(frame: RenderingFrame) -> Value:
            if frame.selected is None:
                raise FailedError(
                    f"'{selection.source}' was cut out and no selected values were given"
                )
            return frame.selected(selection)

        return evaluate

    # statements

    def block(self, body: Sequence[nodes.Node]) -> Emit:
        emits = [emit for node in body for emit in self._statement(node)]
        if len(emits) == 1:
            return emits[0]

        def run(frame: RenderingFrame) -> None:
            for emit in emits:
                emit(frame)

        return run

    def _statement(self, node: nodes.Node) -> Iterator[Emit]:
        match node:
            case nodes.Output():
                for part in node.nodes:
                    yield (
                        _data(part.data)
                        if isinstance(part, nodes.TemplateData)
                        else self._output(part)
                    )
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
        kind: Literal["value", "identifier", "sql"] = "value"
        inside = evaluate
        if (
            isinstance(node, nodes.Filter)
            and node.name in ("identifier", "sql")
            and node.node is not None
        ):
            kind = "identifier" if node.name == "identifier" else "sql"
            inside = self.expression(node.node)
        single = undoubled(node)
        without = inside if single is None else self.expression(single)
        source, line = unparse(node), node.lineno

        def emit(frame: RenderingFrame) -> None:
            if frame.marks is not None:
                value = inside(frame)
                kept = value if single is None else without(frame)
                frame.out.append(_mark(frame, Marked("", value, kind, source, line, kept)))
                return
            value = evaluate(frame)
            made = value if type(value) is str else text(frame, value)
            frame.text -= len(made)
            if frame.text < 0:
                raise LimitError(
                    f"the template makes more than {frame.limits.text} characters of text"
                )
            frame.out.append(made)

        return emit

    def _if(self, node: nodes.If) -> Emit:
        branches = [(self.expression(node.test), self.block(node.body))]
        branches += [(self.expression(other.test), self.block(other.body)) for other in node.elif_]
        otherwise = self.block(node.else_)

        def emit(frame: RenderingFrame) -> None:
            for test, body in branches:
                if truth(test(frame)):
                    return body(frame)
            return otherwise(frame)

        return emit

    def _for(self, node: nodes.For) -> Emit:
        if node.recursive:
            raise ForbiddenError(
                "recursive loops are not part of the template language", line=node.lineno
            )
        bind = _binder(node.target)
        subject, body, otherwise = (
            self.expression(node.iter),
            self.block(node.body),
            self.block(node.else_),
        )
        test = self.expression(node.test) if node.test is not None else None
        cost = 1 + _weight(*node.body)
        test_cost = _weight(node.test) if node.test is not None else 0
        asks_loop = any(name.name == "loop" for part in node.body for name in _names(part))

        def emit(frame: RenderingFrame) -> None:
            outer = frame.local
            entries = elements(frame, subject(frame))
            try:
                if test is not None:
                    entries = [
                        entry
                        for entry in entries
                        if _passes(frame, outer, bind, entry, test, test_cost)
                    ]
                for at, entry in enumerate(entries):
                    frame.work(cost + len(outer))
                    frame.local = dict(outer)
                    if asks_loop:
                        frame.local["loop"] = _loop(at, len(entries))
                    bind(frame.local, entry)
                    body(frame)
            finally:
                frame.local = outer
            if not entries:
                otherwise(frame)

        return emit

    def _assign(self, node: nodes.Assign) -> Emit:
        bind, value = _binder(node.target), self.expression(node.node)
        return lambda frame: bind(frame.local, _made_of(value(frame)))


_STATEMENTS: dict[type[nodes.Node], str] = {
    nodes.AssignBlock: "set block",
    nodes.CallBlock: "call",
    nodes.FilterBlock: "filter block",
    nodes.FromImport: "import",
    nodes.Scope: "autoescape",
}


# --- what closures share


def _comparison(name: str) -> Callable[[RenderingFrame, Value, Value], bool]:
    """A comparison in which the error of a call that did not fail equals nothing, is in nothing and has no order."""
    operation = _COMPARE[name]
    otherwise = name in ("ne", "notin")

    def compared(frame: RenderingFrame, left: Value, right: Value) -> bool:
        if type(left) is Undefined or type(right) is Undefined:
            if is_no_error(left) or is_no_error(right):
                return otherwise
        return operation(frame, left, right)

    return compared


def _scoped(root: str, keys: tuple[str, ...], expression: str) -> Evaluate:
    missing = Undefined(expression, root)
    if not keys:
        return lambda frame: frame.scope.get(root, missing)

    def evaluate(frame: RenderingFrame) -> Value:
        value = frame.scope.get(root, _ABSENT)
        if value is _ABSENT:
            return missing
        for at, key in enumerate(keys):
            if type(value) is dict and key in value:
                value = value[key]
                continue
            value = member(value, key, expression)
            if type(value) is Undefined and value.facts is None:
                if value.missing == expression:
                    return Undefined(expression, ".".join((root, *keys[: at + 1])), value.absent)
                return value
        return value

    return evaluate


def _nothing(frame: RenderingFrame) -> None:
    return None


def _no_text(frame: RenderingFrame) -> str:
    return ""


def _as_it_is(value: Value) -> Value:
    if type(value) in PLAIN or is_lazy(value):
        return value
    return settle(value)


def _made_of(value: Value) -> Value:
    """A part of a list or map that a template makes, or a value it binds: lazy is fine, undefined is not."""
    if type(value) is Undefined:
        raise value.error()
    return value


def _key(value: Value) -> str:
    if isinstance(value, str):
        return value
    raise FailedError(f"{kind_of(value)} cannot be a key, keys are text")


def _slice(
    frame: RenderingFrame, subject: Evaluate, bounds: Sequence[Evaluate], expression: str
) -> Value:
    value = subject(frame)
    if type(value) is Undefined:
        return value
    start, stop, step = (settle(bound(frame)) for bound in bounds)
    for bound in (start, stop, step):
        if bound is not None and (not isinstance(bound, int) or isinstance(bound, bool)):
            raise FailedError(f"{kind_of(bound)} cannot bound a slice, in '{expression}'")
    if step == 0:
        raise FailedError(f"a slice needs a step that is not 0, in '{expression}'")
    return part(frame, value, slice(start, stop, step), expression)


def _default(
    subject: Evaluate, args: Sequence[Evaluate], kwargs: Mapping[str, Evaluate]
) -> Evaluate:
    by_name = dict(zip(("default_value", "boolean"), args, strict=False)) | dict(kwargs)
    other = by_name.get("default_value", _no_text)
    also_false = by_name.get("boolean", _nothing)

    def evaluate(frame: RenderingFrame) -> Value:
        value = subject(frame)
        if type(value) is Undefined:
            return other(frame)
        return other(frame) if truth(also_false(frame)) and not truth(value) else value

    return evaluate


def _method(value: Value, name: str, expression: str) -> Function | None:
    """The method, unless the value has a member of this name: data wins over methods."""
    if isinstance(value, Mapping) or is_lazy(value):
        found = member(value, name, expression)
        if type(found) is not Undefined:
            raise FailedError(
                f"'{expression}' is data and cannot be called", hint=f"write | {name}"
            )
    return method(value, name)


def _data(data: str) -> Emit:
    size = len(data)

    def emit(frame: RenderingFrame) -> None:
        frame.text -= size
        if frame.text < 0:
            raise LimitError(f"the template makes more than {frame.limits.text} characters of text")
        frame.out.append(data)

    return emit


def _mark(frame: RenderingFrame, found: Marked) -> str:
    assert frame.marks is not None
    frame.work(1)
    marker = f"{frame.mark}{len(frame.marks)}{frame.mark}"
    frame.make_text(len(marker))
    value = plain(frame, found.value)
    single = value if found.undoubled is found.value else plain(frame, found.undoubled)
    frame.marks.append(replace(found, marker=marker, value=value, undoubled=single))
    return marker


def _binder(target: nodes.Node) -> Callable[[dict[str, Value], Value], None]:
    if isinstance(target, nodes.Name):
        name = target.name

        def bind(local: dict[str, Value], value: Value) -> None:
            local[name] = value

        return bind
    if not isinstance(target, nodes.Tuple):
        raise ForbiddenError("only names can be set", line=target.lineno)
    parts = [_binder(part) for part in target.items]

    def unpack(local: dict[str, Value], value: Value) -> None:
        value = settle(value)
        if not isinstance(value, list) or len(value) != len(parts):
            raise FailedError(f"{kind_of(value)} cannot be taken apart into {len(parts)} names")
        for bind_part, entry in zip(parts, value, strict=True):
            bind_part(local, entry)

    return unpack


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


def _loop(at: int, size: int) -> dict[str, Value]:
    return {"index": at + 1, "index0": at, "first": at == 0, "last": at == size - 1, "length": size}


# --- rendering


def _run(template: Template, frame: RenderingFrame) -> Value:
    """The value of a template; lazy only when its one expression is."""
    if template.tree is None:
        return template.source
    try:
        frame.work(template.weight)
        if template.evaluate is not None:
            value = template.evaluate(frame)
            return value if type(value) in SCALARS or is_lazy(value) else plain(frame, value)
        return _emitted(template, frame)
    except TemplateError as exc:
        _place(exc, template.source)
        raise


def _place(exc: TemplateError, source: str) -> None:
    """Which template failed, and where the missing name stands in it. An error keeps its first place."""
    if exc.template is None:
        exc.template = source
        if isinstance(exc, UndefinedError) and (at := source.find(exc.missing)) >= 0:
            exc.line, exc.column = source.count("\n", 0, at) + 1, at - source.rfind("\n", 0, at)


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
    """Like render, but an expression whose value is lazy yields that Lazy: a reference is passed on, not resolved."""
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
    """Like evaluate, but an expression whose value is undefined yields that Undefined: asked about, not used."""
    if isinstance(template, str):
        template = parse(template)
    frame = RenderingFrame(scope, limits, functions, selected)
    if template.evaluate is None:
        return _run(template, frame)
    try:
        frame.work(template.weight)
        value = template.evaluate(frame)
        return value if isinstance(value, Undefined) or is_lazy(value) else plain(frame, value)
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
    return value if type(value) in PLAIN else plain(frame, value)


def render_value(
    value: Value,
    scope: Scope,
    *,
    limits: RenderLimits = SERVER_LIMITS,
    functions: Functions | None = None,
    selected: Selected | None = None,
) -> Value:
    """Render every text in a structure, keys too; one budget for all of it."""
    return _rendered(value, RenderingFrame(scope, limits, functions, selected), 0)


def parsed(value: Value) -> Value:
    """A structure to be rendered again and again, its texts parsed."""
    if isinstance(value, str):
        return parse(value)
    if isinstance(value, Mapping):
        return {key: parsed(part) for key, part in value.items()}
    return [parsed(part) for part in value] if isinstance(value, (list, tuple)) else value


def _rendered(value: Value, frame: RenderingFrame, depth: int) -> Value:
    kind = type(value)
    if kind is Template or kind is str or isinstance(value, (str, Template)):
        made = _run(value if kind is Template else parse(value), frame)
        return made if type(made) in PLAIN else plain(frame, made)
    if kind is dict or isinstance(value, (list, tuple, Mapping)):
        if depth >= frame.limits.depth:
            raise LimitError(f"a value is nested more than {frame.limits.depth} deep")
        frame.work(1 + len(value))
    if kind is dict or isinstance(value, Mapping):
        made = {}
        for key, part in value.items():
            try:
                name = _rendered_key(key, frame)
                made[name] = _rendered(part, frame, depth + 1)
            except TemplateError as error:
                error.path = f".{key}{error.path}"
                raise
        if len(made) != len(value):
            raise FailedError("two keys of a map render to the same text")
        return made
    return (
        _rendered_list(value, frame, depth)
        if isinstance(value, (list, tuple))
        else plain(frame, value)
    )


def _rendered_list(parts: Sequence[Value], frame: RenderingFrame, depth: int) -> list[Value]:
    made: list[Value] = []
    for each in parts:
        try:
            made.append(_rendered(each, frame, depth + 1))
        except TemplateError as error:
            error.path = f"[{len(made)}]{error.path}"
            raise
    return made


def _rendered_key(key: Any, frame: RenderingFrame) -> str:
    if isinstance(key, str) and "{" not in key:
        return key
    made = settle(_run(parse(key), frame)) if isinstance(key, str) else key
    if isinstance(made, (list, dict)) or made is None:
        raise FailedError(f"{kind_of(made)} cannot be a key, keys are text")
    return scalar_text(made)


_WORDS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def guard(
    template: Template | Value,
    scope: Scope,
    *,
    limits: RenderLimits = SERVER_LIMITS,
    functions: Functions | None = None,
    selected: Selected | None = None,
) -> bool:
    """The verdict of a `when`: a bool as it is, text by its word, anything else by its truth (null is false)."""
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
    """Whether its value is missing because there is nothing to tell: the error of a success, a step that has not run."""
    found = probe(template, scope, **more)
    return isinstance(found, Undefined) and bool(found.absent)


def verdict(value: Value) -> bool:
    """What a rendered guard says."""
    if isinstance(value, str):
        return _WORDS.get(value.strip().lower(), bool(value))
    return bool(value)


def render_marked(
    template: Template | str,
    scope: Scope,
    *,
    limits: RenderLimits = SERVER_LIMITS,
    functions: Functions | None = None,
    selected: Selected | None = None,
) -> tuple[str, list[Marked]]:
    """The text with a marker in place of every `{{ expression }}`, and what each stands for.

    The markers cannot occur in the template's own text, and no value is part of the text, so a tool can replace each by
    a parameter. `identifier` and `sql`, when last, set the kind; the value is then what went into that filter.
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
    for code in range(0xE000, 0xF900):  # Unicode's private use area
        if (character := chr(code)) not in source:
            return character
    raise ForbiddenError("the template uses every private character")

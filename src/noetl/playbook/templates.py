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

from noetl.playbook.doubling import remove_doubling
from noetl.playbook.expressions import (
    JSON_SCALAR_TYPES,
    JSON_VALUE_TYPES,
    SELECTION_PREFIX,
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
    are_equal,
    compare,
    compute_modulo,
    contains,
    divide,
    floor_divide,
    format_as_text,
    get_item,
    get_member,
    get_slice,
    hint_at_similar_name,
    is_lazy,
    is_no_error,
    is_truthy,
    kind_of,
    list_elements,
    multiply,
    negate,
    raise_to_power,
    settle,
    subtract,
    to_plain,
    unparse,
    write_scalar,
)
from noetl.playbook.functions import (
    FILTERS,
    GLOBALS,
    LAZY_FILTERS,
    METHOD_NAMES,
    SUBJECT_MAY_BE_UNDEFINED,
    TESTS,
    CallMeter,
    Function,
    call_template_function,
    check_arguments,
    find_function,
    find_method,
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
SelectionResolver: TypeAlias = Callable[[Selection], Value]


@dataclass(frozen=True, slots=True)
class MarkedValue:
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


class RenderingFrame(CallMeter):
    """The state of one rendering: the scope, the template's own names, the remaining budget."""

    __slots__ = ("local", "mark", "marks", "out", "scope", "selected")

    def __init__(
        self,
        scope: Scope,
        limits: RenderLimits,
        functions: Functions | None,
        selected: SelectionResolver | None,
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
        self.marks: list[MarkedValue] | None = None


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
_MAX_TEMPLATE_CHARACTERS = 1_000_000
_MAX_TREE_DEPTH = 100
_MAX_BRACKET_DEPTH = 32
_MAX_SHORT_CHARACTERS = 1024
_MAX_CACHED_CHARACTERS = 65_536


def parse(source: str) -> Template:
    if _TAG.search(source) is None:
        return Template(source)
    if len(source) <= _MAX_SHORT_CHARACTERS:
        return _parse_short(source)
    if len(source) <= _MAX_CACHED_CHARACTERS:
        return _parse_long(source)
    return _parse_uncached(source)


def parse_expression(source: str) -> Template:
    """Parse an expression that is written without braces, such as the source of a selection."""
    return parse("{{ " + source + " }}")


def _parse_uncached(source: str) -> Template:
    try:
        parsed_tree = parse_tree(source)
        return compile_tree(source, parsed_tree)
    except TemplateError as exc:
        _locate_syntax_error(exc, source)
        raise


# A tree takes about fifty times the memory of its text, and authors choose the texts. So both
# caches are bounded, and long texts have a small cache of their own.
_parse_short = lru_cache(maxsize=4096)(_parse_uncached)
_parse_long = lru_cache(maxsize=64)(_parse_uncached)


def parse_tree(source: str) -> nodes.Template:
    """Parse the source into a new syntax tree. Callers may change it, because it is not cached."""
    if len(source) > _MAX_TEMPLATE_CHARACTERS:
        raise LimitError(f"the template is longer than {_MAX_TEMPLATE_CHARACTERS} characters")
    try:
        _check_brackets(source)
        return Parser(_SYNTAX, source).parse()
    except jinja2.TemplateSyntaxError as exc:
        raise TemplateSyntaxError(
            exc.message or "not a template", hint=_make_syntax_hint(exc), line=exc.lineno
        ) from None
    except RecursionError:
        raise LimitError("the template is nested too deeply") from None
    except ValueError as exc:  # a number with thousands of digits
        raise TemplateSyntaxError(f"not a template: {exc}") from None


def tokenize_template(source: str) -> Iterator[tuple[int, str, str]]:
    """Yield (line, kind, text) of each token, without the white space that the template strips."""
    yield from _SYNTAX.lexer.tokeniter(source, None)


def _check_brackets(source: str) -> None:
    """Refuse deeply nested brackets, because the parser recurses for each bracket."""
    depth = 0
    for _, kind, operator in tokenize_template(source):
        if kind != "operator":
            continue
        if operator in "([{":
            depth += 1
        elif operator in ")]}":
            depth -= 1
        if depth > _MAX_BRACKET_DEPTH:
            raise LimitError(f"brackets are nested more than {_MAX_BRACKET_DEPTH} deep")


def _make_syntax_hint(exc: jinja2.TemplateSyntaxError) -> str | None:
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


def _locate_syntax_error(exc: TemplateError, source: str) -> None:
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


def compile_tree(
    source: str, tree: nodes.Template, selections: tuple[Selection, ...] = ()
) -> Template:
    """Compile a tree. selections.py calls this for trees in which selections replace some parts."""
    weight = _check_tree(tree)
    compiler = _Compiler(tree, {selection.id: selection for selection in selections})
    expression = _find_only_expression(tree)
    evaluate = None
    if expression is not None:
        evaluate = compiler.compile_expression(expression)
    emit = compiler.compile_block(tree.body)
    return Template(source, selections, tree, weight, expression, evaluate, emit)


def find_dotted_path(template: Template) -> tuple[str, ...] | None:
    """Return the names of a template like `{{ name }}` or `{{ name.member }}`, else None."""
    names: list[str] = []
    node = template.expression
    while isinstance(node, nodes.Getattr):
        names.append(node.attr)
        node = node.node
    if not isinstance(node, nodes.Name):
        return None
    return (node.name, *reversed(names))


def _find_only_expression(tree: nodes.Template) -> nodes.Expr | None:
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
        if depth > _MAX_TREE_DEPTH:
            raise LimitError(
                f"the template is nested more than {_MAX_TREE_DEPTH} deep", line=node.lineno
            )
        stack.extend((child, depth + 1) for child in node.iter_child_nodes())
    return count


# --- compiling

_ARITHMETIC: dict[type[nodes.Node], Callable[[Meter, Value, Value], Value]] = {
    nodes.Add: add,
    nodes.Sub: subtract,
    nodes.Mul: multiply,
    nodes.Div: divide,
    nodes.FloorDiv: floor_divide,
    nodes.Mod: compute_modulo,
    nodes.Pow: raise_to_power,
}
_SIGN_OPERATIONS: dict[type[nodes.Node], Callable[[Meter, Value], Value]] = {
    nodes.Neg: negate,
    nodes.Pos: affirm,
}
_COMPARISONS: dict[str, Callable[[Meter, Value, Value], bool]] = {
    "eq": are_equal,
    "ne": lambda meter, left, right: not are_equal(meter, left, right),
    "lt": lambda meter, left, right: compare(meter, left, right) < 0,
    "lteq": lambda meter, left, right: compare(meter, left, right) <= 0,
    "gt": lambda meter, left, right: compare(meter, left, right) > 0,
    "gteq": lambda meter, left, right: compare(meter, left, right) >= 0,
    "in": lambda meter, left, right: contains(meter, right, left),
    "notin": lambda meter, left, right: not contains(meter, right, left),
}
_ABSENT = object()


def find_assigned_names(tree: nodes.Node) -> frozenset[str]:
    """Return the names that the template sets itself."""
    bound = {node.name for node in tree.find_all(nodes.Name) if node.ctx != "load"}
    if tree.find(nodes.For) is not None:
        bound.add("loop")
    return frozenset(bound)


def _find_name_nodes(node: nodes.Node) -> Iterator[nodes.Name]:
    if isinstance(node, nodes.Name):
        yield node
    yield from node.find_all(nodes.Name)


def _count_nodes(*parts: nodes.Node) -> int:
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
        self.bound = find_assigned_names(tree)
        self.selections = selections

    # expressions

    def compile_expression(self, node: nodes.Node) -> Evaluate:
        try:
            return self._compile_node(node)
        except TemplateError as exc:
            exc.line = exc.line or node.lineno
            raise

    def _compile_node(self, node: nodes.Node) -> Evaluate:
        match node:
            case nodes.Const():
                return self._compile_constant(node)
            case nodes.Name() | nodes.Getattr():
                return self._compile_path(node)
            case nodes.Getitem():
                return self._compile_item(node)
            case nodes.Filter():
                return self._compile_filter(node)
            case nodes.Test():
                return self._compile_test(node)
            case nodes.Call():
                return self._compile_call(node)
            case nodes.Compare():
                return self._compile_compare(node)
            case nodes.And():
                return self._compile_and(node)
            case nodes.Or():
                return self._compile_or(node)
            case nodes.Not():
                inner = self.compile_expression(node.node)
                return lambda frame: not is_truthy(inner(frame))
            case nodes.CondExpr():
                return self._compile_condition(node)
            case nodes.Concat():
                return self._compile_concat(node)
            case nodes.List() | nodes.Tuple():
                return self._compile_list(node)
            case nodes.Dict():
                return self._compile_dict(node)
            case nodes.ImportedName():
                return self._compile_selection(node)
            case nodes.BinExpr() if type(node) in _ARITHMETIC:
                return self._compile_arithmetic(node)
            case nodes.UnaryExpr() if type(node) in _SIGN_OPERATIONS:
                sign = _SIGN_OPERATIONS[type(node)]
                subject = self.compile_expression(node.node)
                return lambda frame: sign(frame, subject(frame))
            case _:
                raise ForbiddenError(
                    f"'{type(node).__name__.lower()}' is not part of the template language"
                )

    def _compile_constant(self, node: nodes.Const) -> Evaluate:
        value = node.value
        if isinstance(value, int) and value.bit_length() > 64:
            raise LimitError("an integer takes more than 64 bits")
        if isinstance(value, float) and value in (float("inf"), float("-inf")):
            raise TemplateSyntaxError("a number is too large")
        return _make_constant(value)

    def _compile_path(self, node: nodes.Name | nodes.Getattr) -> Evaluate:
        """Compile a name and its members into one closure: by far the most frequent expression."""
        keys: list[str] = []
        root: nodes.Expr = node
        while isinstance(root, nodes.Getattr):
            keys.append(root.attr)
            root = root.node
        keys.reverse()
        if not isinstance(root, nodes.Name):
            return self._compile_members(self.compile_expression(root), tuple(keys), unparse(root))
        if root.name in self.bound:
            return self._compile_members(self._compile_local(root.name), tuple(keys), root.name)
        return _compile_scope_path(root.name, tuple(keys), unparse(node))

    def _compile_local(self, name: str) -> Evaluate:
        missing = Undefined(name, name)

        def evaluate_local(frame: RenderingFrame) -> Value:
            value = frame.local.get(name, _ABSENT)
            if value is _ABSENT:
                return frame.scope.get(name, missing)
            return value

        return evaluate_local

    def _compile_members(self, root: Evaluate, keys: tuple[str, ...], base: str) -> Evaluate:
        if not keys:
            return root
        expressions = [".".join((base, *keys[: index + 1])) for index in range(len(keys))]
        steps = tuple(zip(keys, expressions, strict=True))

        def evaluate_members(frame: RenderingFrame) -> Value:
            value = root(frame)
            for key, expression in steps:
                value = get_member(value, key, expression)
            return value

        return evaluate_members

    def _compile_item(self, node: nodes.Getitem) -> Evaluate:
        subject = self.compile_expression(node.node)
        expression = unparse(node)
        if isinstance(node.arg, nodes.Slice):
            bound_nodes = (node.arg.start, node.arg.stop, node.arg.step)
            bounds = [self._compile_optional(bound) for bound in bound_nodes]
            return lambda frame: _evaluate_slice(frame, subject, bounds, expression)
        if isinstance(node.arg, nodes.Tuple):
            raise ForbiddenError("an index is one value")
        key = self.compile_expression(node.arg)
        return lambda frame: get_item(subject(frame), settle(key(frame)), expression)

    def _compile_optional(self, node: nodes.Expr | None) -> Evaluate:
        if node is None:
            return _return_none
        return self.compile_expression(node)

    def _compile_filter(self, node: nodes.Filter) -> Evaluate:
        if node.node is None:
            raise ForbiddenError("filter blocks are not part of the template language")
        name = node.name
        function = find_function(FILTERS, name, "filter")
        subject = self.compile_expression(node.node)
        args, kwargs = self._compile_arguments(node)
        check_arguments(function, name, len(args), tuple(kwargs))
        self._check_nested_name(node)
        if name in ("default", "d"):
            return _compile_default(subject, args, kwargs)
        prepare = _settle_unless_lazy if function in LAZY_FILTERS else settle
        if not args and not kwargs:
            return lambda frame: call_template_function(
                function, name, frame, prepare(subject(frame))
            )
        return lambda frame: call_template_function(
            function,
            name,
            frame,
            prepare(subject(frame)),
            *[settle(arg(frame)) for arg in args],
            **{key: settle(arg(frame)) for key, arg in kwargs.items()},
        )

    def _check_nested_name(self, node: nodes.Filter) -> None:
        """Refuse an unknown filter or test that `map`, `select` and the like name by a constant."""
        position = _POSITION_OF_NESTED.get(node.name)
        if position is None or len(node.args) <= position:
            return
        inner = node.args[position]
        if not (isinstance(inner, nodes.Const) and isinstance(inner.value, str)):
            return
        if node.name == "map":
            find_function(FILTERS, inner.value, "filter")
        else:
            find_function(TESTS, inner.value, "test")

    def _compile_test(self, node: nodes.Test) -> Evaluate:
        name = node.name
        function = find_function(TESTS, name, "test")
        subject = self.compile_expression(node.node)
        args, kwargs = self._compile_arguments(node)
        check_arguments(function, name, len(args), tuple(kwargs))
        if name in SUBJECT_MAY_BE_UNDEFINED:
            return lambda frame: function(frame, subject(frame))
        return lambda frame: call_template_function(
            function, name, frame, settle(subject(frame)), *[settle(arg(frame)) for arg in args]
        )

    def _compile_call(self, node: nodes.Call) -> Evaluate:
        args, kwargs = self._compile_arguments(node)
        if isinstance(node.node, nodes.Name):
            return self._compile_global_call(node.node.name, args, kwargs)
        if isinstance(node.node, nodes.Getattr):
            return self._compile_method_call(node.node, args, kwargs)
        raise ForbiddenError(f"'{unparse(node.node)}' cannot be called")

    def _compile_global_call(
        self,
        name: str,
        args: Sequence[Evaluate],
        kwargs: Mapping[str, Evaluate],
    ) -> Evaluate:
        if name not in GLOBALS:
            hint = hint_at_similar_name(name, GLOBALS)
            raise ForbiddenError(f"there is no function '{name}'", hint=hint)
        function = GLOBALS[name]
        check_arguments(function, name, len(args), tuple(kwargs), leading=1)
        return lambda frame: call_template_function(
            function,
            name,
            frame,
            *[settle(arg(frame)) for arg in args],
            **{key: settle(arg(frame)) for key, arg in kwargs.items()},
        )

    def _compile_method_call(
        self,
        node: nodes.Getattr,
        args: Sequence[Evaluate],
        kwargs: Mapping[str, Evaluate],
    ) -> Evaluate:
        name = node.attr
        subject = self.compile_expression(node.node)
        expression = unparse(node)
        if name not in METHOD_NAMES:
            hint = hint_at_similar_name(name, METHOD_NAMES)
            raise ForbiddenError(f"there is no method '{name}'", hint=hint)

        def evaluate_method(frame: RenderingFrame) -> Value:
            value = subject(frame)
            function = _find_callable_method(value, name, expression)
            value = settle(value)
            function = function or _find_callable_method(value, name, expression)
            if function is None:
                raise FailedError(f"{kind_of(value)} has no method '{name}', in '{expression}()'")
            check_arguments(function, name, len(args), tuple(kwargs))
            return call_template_function(
                function,
                name,
                frame,
                value,
                *[settle(arg(frame)) for arg in args],
                **{key: settle(arg(frame)) for key, arg in kwargs.items()},
            )

        return evaluate_method

    def _compile_arguments(
        self, node: nodes.Filter | nodes.Test | nodes.Call
    ) -> tuple[list[Evaluate], dict[str, Evaluate]]:
        if node.dyn_args is not None or node.dyn_kwargs is not None:
            raise ForbiddenError("* and ** arguments are not part of the template language")
        kwargs: dict[str, Evaluate] = {}
        for pair in node.kwargs:
            kwargs[str(pair.key)] = self.compile_expression(pair.value)
        return [self.compile_expression(arg) for arg in node.args], kwargs

    def _compile_compare(self, node: nodes.Compare) -> Evaluate:
        first = self.compile_expression(node.expr)
        rest = []
        for operand in node.ops:
            rest.append((_make_comparison(operand.op), self.compile_expression(operand.expr)))
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

    def _compile_and(self, node: nodes.And) -> Evaluate:
        left = self.compile_expression(node.left)
        right = self.compile_expression(node.right)

        def evaluate_and(frame: RenderingFrame) -> Value:
            value = left(frame)
            if is_truthy(value):
                return right(frame)
            return value

        return evaluate_and

    def _compile_or(self, node: nodes.Or) -> Evaluate:
        left = self.compile_expression(node.left)
        right = self.compile_expression(node.right)

        def evaluate_or(frame: RenderingFrame) -> Value:
            value = left(frame)
            if is_truthy(value):
                return value
            return right(frame)

        return evaluate_or

    def _compile_condition(self, node: nodes.CondExpr) -> Evaluate:
        test = self.compile_expression(node.test)
        consequence = self.compile_expression(node.expr1)
        if node.expr2 is None:
            alternative = _make_constant(Undefined(unparse(node), "the else part"))
        else:
            alternative = self.compile_expression(node.expr2)

        def evaluate_condition(frame: RenderingFrame) -> Value:
            if is_truthy(test(frame)):
                return consequence(frame)
            return alternative(frame)

        return evaluate_condition

    def _compile_concat(self, node: nodes.Concat) -> Evaluate:
        parts = [self.compile_expression(part) for part in node.nodes]

        def evaluate_concat(frame: RenderingFrame) -> str:
            texts = [format_as_text(frame, part(frame)) for part in parts]
            frame.spend_text(sum(map(len, texts)))
            return "".join(texts)

        return evaluate_concat

    def _compile_list(self, node: nodes.List | nodes.Tuple) -> Evaluate:
        parts = [self.compile_expression(part) for part in node.items]
        return lambda frame: [_refuse_undefined(part(frame)) for part in parts]

    def _compile_dict(self, node: nodes.Dict) -> Evaluate:
        pairs = []
        for pair in node.items:
            pairs.append((self.compile_expression(pair.key), self.compile_expression(pair.value)))
        return lambda frame: {
            _require_key(settle(key(frame))): _refuse_undefined(value(frame))
            for key, value in pairs
        }

    def _compile_arithmetic(self, node: nodes.BinExpr) -> Evaluate:
        operation = _ARITHMETIC[type(node)]
        left = self.compile_expression(node.left)
        right = self.compile_expression(node.right)
        return lambda frame: operation(frame, left(frame), right(frame))

    def _compile_selection(self, node: nodes.ImportedName) -> Evaluate:
        selection = self.selections[node.importname.removeprefix(SELECTION_PREFIX)]

        def evaluate_selection(frame: RenderingFrame) -> Value:
            if frame.selected is None:
                raise FailedError(
                    f"'{selection.source}' was cut out and no selected values were given"
                )
            return frame.selected(selection)

        return evaluate_selection

    # statements

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
        evaluate = self.compile_expression(node)
        evaluate_marked = evaluate
        kind: Literal["value", "identifier", "sql"] = "value"
        if isinstance(node, nodes.Filter) and node.node is not None:
            if node.name == "identifier":
                kind = "identifier"
            elif node.name == "sql":
                kind = "sql"
            if kind != "value":
                evaluate_marked = self.compile_expression(node.node)
        undoubled_node = remove_doubling(node)
        evaluate_undoubled = None
        if undoubled_node is not None:
            evaluate_undoubled = self.compile_expression(undoubled_node)
        source = unparse(node)
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
            frame.text -= len(output)
            if frame.text < 0:
                raise LimitError(
                    f"the template makes more than {frame.limits.text} characters of text"
                )
            frame.out.append(output)

        return emit_output

    def _compile_if(self, node: nodes.If) -> Emit:
        branches = [
            (self.compile_expression(branch.test), self.compile_block(branch.body))
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
        subject = self.compile_expression(node.iter)
        body = self.compile_block(node.body)
        else_body = self.compile_block(node.else_)
        cost = 1 + _count_nodes(*node.body)
        test = None
        test_cost = 0
        if node.test is not None:
            test = self.compile_expression(node.test)
            test_cost = _count_nodes(node.test)
        names_in_body = {name.name for part in node.body for name in _find_name_nodes(part)}
        uses_loop = "loop" in names_in_body

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
        value = self.compile_expression(node.node)
        return lambda frame: bind(frame.local, _refuse_undefined(value(frame)))


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


def _make_comparison(name: str) -> Callable[[RenderingFrame, Value, Value], bool]:
    """Return the comparison operator of this name.

    The error of a call that did not fail equals nothing, is in nothing and has no order: comparing
    with it gives true for `!=` and `not in`, and false for every other operator.
    """
    operation = _COMPARISONS[name]
    is_negation = name in ("ne", "notin")

    def compare_operands(frame: RenderingFrame, left: Value, right: Value) -> bool:
        if type(left) is Undefined or type(right) is Undefined:
            if is_no_error(left) or is_no_error(right):
                return is_negation
        return operation(frame, left, right)

    return compare_operands


def _compile_scope_path(root: str, keys: tuple[str, ...], expression: str) -> Evaluate:
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
            value = get_member(value, key, expression)
            if type(value) is Undefined and value.facts is None:
                if value.missing == expression:
                    missing_path = ".".join((root, *keys[: index + 1]))
                    return Undefined(expression, missing_path, value.absent)
                return value
        return value

    return evaluate_path


def _make_constant(value: Value) -> Evaluate:
    return lambda frame: value


def _return_none(frame: RenderingFrame) -> None:
    return None


def _return_no_text(frame: RenderingFrame) -> str:
    return ""


def _settle_unless_lazy(value: Value) -> Value:
    """Settle a value for a filter that accepts lazy values."""
    if type(value) in JSON_VALUE_TYPES or is_lazy(value):
        return value
    return settle(value)


def _refuse_undefined(value: Value) -> Value:
    """Refuse undefined in a list or map that the template makes, and in names it sets.

    Lazy is fine.
    """
    if type(value) is Undefined:
        undefined: Undefined = value
        raise undefined.make_error()
    return value


def _require_key(value: Value) -> str:
    if isinstance(value, str):
        return value
    raise FailedError(f"{kind_of(value)} cannot be a key, keys are text")


def _evaluate_slice(
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
    return get_slice(frame, value, slice(start, stop, step), expression)


def _compile_default(
    subject: Evaluate,
    args: Sequence[Evaluate],
    kwargs: Mapping[str, Evaluate],
) -> Evaluate:
    """Compile the filter `default`, the only one that accepts an undefined subject."""
    positional = dict(zip(("default_value", "boolean"), args, strict=False))
    arguments = {**positional, **kwargs}
    default_value = arguments.get("default_value", _return_no_text)
    replaces_false = arguments.get("boolean", _return_none)

    def evaluate_default(frame: RenderingFrame) -> Value:
        value = subject(frame)
        if type(value) is Undefined:
            return default_value(frame)
        if is_truthy(replaces_false(frame)) and not is_truthy(value):
            return default_value(frame)
        return value

    return evaluate_default


def _find_callable_method(value: Value, name: str, expression: str) -> Function | None:
    """Return the method of a value.

    Fails if the value has a member of this name, because data wins.
    """
    if isinstance(value, Mapping) or is_lazy(value):
        found = get_member(value, name, expression)
        if type(found) is not Undefined:
            raise FailedError(
                f"'{expression}' is data and cannot be called", hint=f"write | {name}"
            )
    return find_method(value, name)


def _compile_data(data: str) -> Emit:
    size = len(data)

    def emit_data(frame: RenderingFrame) -> None:
        frame.text -= size
        if frame.text < 0:
            raise LimitError(f"the template makes more than {frame.limits.text} characters of text")
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


# --- rendering


def _evaluate_template(template: Template, frame: RenderingFrame) -> Value:
    """Return the value of a template.

    It is lazy if the template is one expression with a lazy value.
    """
    if template.tree is None:
        return template.source
    try:
        frame.spend_operations(template.weight)
        if template.evaluate is not None:
            value = template.evaluate(frame)
            if type(value) in JSON_SCALAR_TYPES or is_lazy(value):
                return value
            return to_plain(frame, value)
        return _emit_text(template, frame)
    except TemplateError as exc:
        _record_place(exc, template.source)
        raise


def _record_place(exc: TemplateError, source: str) -> None:
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


def _emit_text(template: Template, frame: RenderingFrame) -> str:
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
    selected: SelectionResolver | None = None,
) -> Value:
    """Like `render`, but a lazy value stays lazy: the caller gets the reference, not its data."""
    if isinstance(template, str):
        template = parse(template)
    return _evaluate_template(template, RenderingFrame(scope, limits, functions, selected))


def probe(
    template: Template | str,
    scope: Scope,
    *,
    limits: RenderLimits = SERVER_LIMITS,
    functions: Functions | None = None,
    selected: SelectionResolver | None = None,
) -> Value:
    """Like `evaluate`, but returns an undefined value as an Undefined instead of raising."""
    if isinstance(template, str):
        template = parse(template)
    frame = RenderingFrame(scope, limits, functions, selected)
    if template.evaluate is None:
        return _evaluate_template(template, frame)
    try:
        frame.spend_operations(template.weight)
        value = template.evaluate(frame)
        if isinstance(value, Undefined) or is_lazy(value):
            return value
        return to_plain(frame, value)
    except TemplateError as exc:
        _record_place(exc, template.source)
        raise


def render(
    template: Template | str,
    scope: Scope,
    *,
    limits: RenderLimits = SERVER_LIMITS,
    functions: Functions | None = None,
    selected: SelectionResolver | None = None,
) -> Value:
    if isinstance(template, str):
        template = parse(template)
    if template.tree is None:
        return template.source
    frame = RenderingFrame(scope, limits, functions, selected)
    value = _evaluate_template(template, frame)
    if type(value) in JSON_VALUE_TYPES:
        return value
    return to_plain(frame, value)


def render_value(
    value: Value,
    scope: Scope,
    *,
    limits: RenderLimits = SERVER_LIMITS,
    functions: Functions | None = None,
    selected: SelectionResolver | None = None,
) -> Value:
    """Render every text in a structure, keys included, with one budget for all of them."""
    return _render_part(value, RenderingFrame(scope, limits, functions, selected), 0)


def parse_texts(value: Value) -> Value:
    """Parse every text value of a structure that is rendered many times."""
    if isinstance(value, str):
        return parse(value)
    if isinstance(value, Mapping):
        return {key: parse_texts(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [parse_texts(part) for part in value]
    return value


def _render_part(value: Value, frame: RenderingFrame, depth: int) -> Value:
    kind = type(value)
    if kind is Template or kind is str or isinstance(value, (str, Template)):
        template = value if kind is Template else parse(value)
        rendered = _evaluate_template(template, frame)
        if type(rendered) in JSON_VALUE_TYPES:
            return rendered
        return to_plain(frame, rendered)
    if kind is dict or isinstance(value, (list, tuple, Mapping)):
        if depth >= frame.limits.depth:
            raise LimitError(f"a value is nested more than {frame.limits.depth} deep")
        frame.spend_operations(1 + len(value))
    if kind is dict or isinstance(value, Mapping):
        rendered = {}
        for key, part in value.items():
            try:
                name = _render_key(key, frame)
                rendered[name] = _render_part(part, frame, depth + 1)
            except TemplateError as error:
                error.path = f".{key}{error.path}"
                raise
        if len(rendered) != len(value):
            raise FailedError("two keys of a map render to the same text")
        return rendered
    if isinstance(value, (list, tuple)):
        return _render_list(value, frame, depth)
    return to_plain(frame, value)


def _render_list(parts: Sequence[Value], frame: RenderingFrame, depth: int) -> list[Value]:
    rendered: list[Value] = []
    for entry in parts:
        try:
            rendered.append(_render_part(entry, frame, depth + 1))
        except TemplateError as error:
            error.path = f"[{len(rendered)}]{error.path}"
            raise
    return rendered


def _render_key(key: Any, frame: RenderingFrame) -> str:
    if isinstance(key, str):
        if "{" not in key:
            return key
        key = settle(_evaluate_template(parse(key), frame))
    if isinstance(key, (list, dict)) or key is None:
        raise FailedError(f"{kind_of(key)} cannot be a key, keys are text")
    return write_scalar(key)


_GUARD_WORDS = {
    "true": True,
    "yes": True,
    "1": True,
    "false": False,
    "no": False,
    "0": False,
}


def evaluate_guard(
    template: Template | Value,
    scope: Scope,
    *,
    limits: RenderLimits = SERVER_LIMITS,
    functions: Functions | None = None,
    selected: SelectionResolver | None = None,
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
    return is_guard_true(value)


def is_absent(template: Template | str, scope: Scope, **more: Any) -> bool:
    """Whether the value is missing by design, such as the error of a success."""
    value = probe(template, scope, **more)
    return isinstance(value, Undefined) and bool(value.absent)


def is_guard_true(value: Value) -> bool:
    """Convert the value of a guard to a bool.

    The texts true, yes, 1, false, no and 0 (in any case) mean what they say. Any other value counts
    by its truth: null, 0, and empty texts, lists and maps are false.
    """
    if isinstance(value, str):
        word = value.strip().lower()
        return _GUARD_WORDS.get(word, bool(value))
    return bool(value)


def render_marked(
    template: Template | str,
    scope: Scope,
    *,
    limits: RenderLimits = SERVER_LIMITS,
    functions: Functions | None = None,
    selected: SelectionResolver | None = None,
) -> tuple[str, list[MarkedValue]]:
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
    frame.mark = _find_free_character(template.source)
    frame.marks = []
    try:
        frame.spend_operations(template.weight)
        return _emit_text(template, frame), frame.marks
    except TemplateError as exc:
        _record_place(exc, template.source)
        raise


def _find_free_character(source: str) -> str:
    """Return a character of Unicode's private use area that the source does not contain."""
    for code in range(0xE000, 0xF900):
        character = chr(code)
        if character not in source:
            return character
    raise ForbiddenError("the template uses every private character")

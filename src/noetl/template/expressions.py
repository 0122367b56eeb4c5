"""Compiles expressions: every node of Jinja2's tree becomes one closure.

A node without a closure here is not part of the language. Evaluation only reads its scope, so it
can be repeated: a Lazy may raise NeedsData half way, and the caller evaluates again once the data
is loaded. Results may share structure with the scope.
"""

from collections.abc import Callable, Mapping, Sequence

from jinja2 import nodes

from noetl.template.errors import (
    FailedError,
    ForbiddenError,
    LimitError,
    TemplateError,
    TemplateSyntaxError,
    hint_at_similar_name,
)
from noetl.template.functions.calling import (
    Function,
    call_template_function,
    check_arguments,
    find_function,
)
from noetl.template.functions.filters import FILTERS, LAZY_FILTERS
from noetl.template.functions.globals import GLOBALS
from noetl.template.functions.methods import METHOD_NAMES, find_method
from noetl.template.functions.tests import SUBJECT_MAY_BE_UNDEFINED, TESTS
from noetl.template.limits import Meter
from noetl.template.members import get_item, get_member, get_slice
from noetl.template.model import Evaluate, RenderingFrame, Selection
from noetl.template.operators import (
    add,
    affirm,
    are_equal,
    compare,
    compute_modulo,
    contains,
    divide,
    floor_divide,
    is_no_error,
    is_truthy,
    multiply,
    negate,
    raise_to_power,
    subtract,
)
from noetl.template.unparsing import SELECTION_PREFIX, unparse
from noetl.template.values import (
    JSON_VALUE_TYPES,
    Undefined,
    Value,
    is_lazy,
    kind_of,
    refuse_undefined,
    settle,
)
from noetl.template.writing import format_as_text

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
_MAX_QUOTED_NODES = 50


def find_assigned_names(tree: nodes.Node) -> frozenset[str]:
    """Return the names that the template sets itself."""
    bound = {node.name for node in tree.find_all(nodes.Name) if node.ctx != "load"}
    if tree.find(nodes.For) is not None:
        bound.add("loop")
    return frozenset(bound)


def measure_nodes(tree: nodes.Node) -> dict[int, int]:
    """Return how many nodes each node has at and below it, by the id of the node."""
    order: list[nodes.Node] = []
    parents: list[int] = []  # position of each node's parent in `order`
    stack = [(tree, 0)]
    while stack:
        node, parent = stack.pop()
        position = len(order)
        order.append(node)
        parents.append(parent)
        stack.extend((child, position) for child in node.iter_child_nodes())
    sizes = [1] * len(order)
    for position in range(len(order) - 1, 0, -1):
        sizes[parents[position]] += sizes[position]
    return {id(node): size for node, size in zip(order, sizes, strict=True)}


class ExpressionCompiler:
    """Turns each node of an expression into a closure.

    Names that the template never sets are read from the scope.
    """

    def __init__(self, tree: nodes.Template, selections: Mapping[str, Selection]) -> None:
        self.bound = find_assigned_names(tree)
        self.selections = selections
        self._sizes = measure_nodes(tree)
        self._compiled: dict[int, Evaluate] = {}  # by the id of the node, which the tree keeps

    def compile_expression(self, node: nodes.Node) -> Evaluate:
        """Compile a node once: outputs and the value of a template share their expression."""
        compiled = self._compiled.get(id(node))
        if compiled is not None:
            return compiled
        try:
            compiled = self._compile_node(node)
        except TemplateError as exc:
            exc.line = exc.line or node.lineno
            raise
        if id(node) in self._sizes:  # `remove_doubling` makes nodes that nothing keeps
            self._compiled[id(node)] = compiled
        return compiled

    def count_nodes(self, parts: Sequence[nodes.Node]) -> int:
        """Count the nodes at and below these parts of the tree."""
        return sum(self._sizes.get(id(part), 1) for part in parts)

    def quote(self, node: nodes.Node) -> str:
        """Write an expression for messages. A long one would be written again at every level."""
        if self._sizes.get(id(node), 1) > _MAX_QUOTED_NODES:
            return f"a long {type(node).__name__.lower()}"
        return unparse(node)

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
            return self._compile_members(
                self.compile_expression(root), tuple(keys), self.quote(root)
            )
        if root.name in self.bound:
            return self._compile_members(self._compile_local(root.name), tuple(keys), root.name)
        return _compile_scope_path(root.name, tuple(keys), self.quote(node))

    def _compile_local(self, name: str) -> Evaluate:
        missing = Undefined(name, name)

        def evaluate_local(frame: RenderingFrame) -> Value:
            value = frame.local.get(name, _ABSENT)
            if value is _ABSENT:
                return frame.scope.get(name, missing)
            return value

        return evaluate_local

    def _compile_members(
        self,
        root: Evaluate,
        keys: tuple[str, ...],
        base: str,
    ) -> Evaluate:
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
        expression = self.quote(node)
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
        raise ForbiddenError(f"'{self.quote(node.node)}' cannot be called")

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
        expression = self.quote(node)
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
            alternative = _make_constant(Undefined(self.quote(node), "the else part"))
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
            frame.spend_text(sum(map(len, texts)), all(map(str.isascii, texts)))
            return "".join(texts)

        return evaluate_concat

    def _compile_list(self, node: nodes.List | nodes.Tuple) -> Evaluate:
        parts = [self.compile_expression(part) for part in node.items]
        return lambda frame: [refuse_undefined(part(frame)) for part in parts]

    def _compile_dict(self, node: nodes.Dict) -> Evaluate:
        pairs = []
        for pair in node.items:
            pairs.append((self.compile_expression(pair.key), self.compile_expression(pair.value)))
        return lambda frame: {
            _require_key(settle(key(frame))): refuse_undefined(value(frame)) for key, value in pairs
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


# Filters that take the name of a filter or test: the position of that argument.
_POSITION_OF_NESTED = {
    "map": 0,
    "select": 0,
    "reject": 0,
    "selectattr": 1,
    "rejectattr": 1,
}


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

"""Server-side expressions: evaluated from envelopes, workload and ctx. Workers evaluate the rest.

An answer is a list of values, a Failure, or NEEDS_WORKER if an expression needs data. Evaluation
is bounded by counting operations, and it knows no clock: `now()`, `uuid()` and `random()` are
derived from the event being handled, so that a replay gives the same values.
"""

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from noetl.engine.playbook_state import visible
from noetl.engine.state import Activation, Execution, PinnedPlaybook
from noetl.model.clock import iso
from noetl.model.envelope import Envelope, Selected
from noetl.model.errors import Failure
from noetl.model.ids import Micros
from noetl.model.reference import Reference
from noetl.playbook.assignments import (
    LITERAL,
    REFERENCE,
    is_reference,
    is_state,
    is_wrapped,
    link_to,
    linked,
    unwrapped,
    wrapped,
)
from noetl.playbook.expressions import (
    NO_ERROR,
    NONE_UNDEFINED,
    NeedsData,
    OptionalMap,
    TemplateError,
    Undefined,
    Value,
    without_value,
)
from noetl.playbook.functions import Seeded
from noetl.playbook.plan import ExpressionSite
from noetl.playbook.scopes import ended_loop, handled_event, identity, outer_iteration
from noetl.playbook.templates import (
    Selection,
    Template,
    guard,
    parse_expression,
    probe,
    render_value,
    verdict,
)
from noetl.playbook.templates import evaluate as evaluate_template

SAW_VALUES = 8  # in one verdict of `next.evaluated`
SAW_BYTES = 200  # of one value, as JSON


class NeedsWorker:
    """The answer for a site that cannot be evaluated without opening data."""


NEEDS_WORKER = NeedsWorker()
Answer = list[Any] | Failure | NeedsWorker


class Moment(Struct, frozen=True):
    """The event being handled: all that a decision may know of the present time."""

    key: str
    at: Micros

    def functions(self, place: str) -> Seeded:
        """The functions `now()`, `uuid()` and `random()` for the template at this place."""
        return Seeded(f"{self.key}\0{place}", iso(self.at))


class Distant:
    """A value by reference. Expressions may pass it on; looking into it needs a worker."""

    def __init__(self, reference: Reference) -> None:
        self.reference = reference

    def member(self, name: str) -> Value:
        raise NeedsData(self.reference.uri)

    def item(self, index: int | slice) -> Value:
        raise NeedsData(self.reference.uri)

    def length(self) -> int:
        raise NeedsData(self.reference.uri)

    def plain(self) -> Value:
        raise NeedsData(self.reference.uri)


def with_distant(value: Any) -> Any:
    """Replace every link in the value, also inside maps, by a Distant."""
    if not isinstance(value, dict):
        return value
    if is_reference(value):
        return Distant(linked(value))
    if is_wrapped(value):
        return value[LITERAL]
    return {name: with_distant(part) for name, part in value.items()}


class SelectionFailed(Exception):
    """The worker that has the data could not compute a selection that is used here."""


# ---- evaluating -------------------------------------------------------------------------


def evaluate(
    pinned: PinnedPlaybook,
    state: Execution,
    activation: Activation,
    site: ExpressionSite,
    moment: Moment,
) -> Answer:
    """The values of all expressions of the site, in order.

    A list or map by reference becomes a link. Data that looks like a link is wrapped, except in
    values for the playbook's state, which holds no links.
    """
    return _each(pinned, state, activation, site, moment, _value)


def verdicts(
    pinned: PinnedPlaybook,
    state: Execution,
    activation: Activation,
    site: ExpressionSite,
    moment: Moment,
) -> Answer:
    """True, False or a Failure for each guard of the site; NEEDS_WORKER as soon as one needs
    data."""
    return _each(pinned, state, activation, site, moment, _guard)


def value_of(
    pinned: PinnedPlaybook,
    state: Execution,
    activation: Activation,
    template: Any,
    moment: Moment,
    place: str,
) -> Any | Failure:
    """Render one template from workload, ctx and identity. A template that needs data fails."""
    scope = names(pinned, state, activation, moment)
    try:
        return render_value(template, scope, functions=moment.functions(place))
    except NeedsData:
        return Failure(
            code="EXPRESSION",
            kind="template",
            message="the value is stored by reference, a scalar is needed",
        )
    except TemplateError as error:
        return failure(error)


def _each(
    pinned: PinnedPlaybook,
    state: Execution,
    activation: Activation,
    site: ExpressionSite,
    moment: Moment,
    evaluate_one: "Callable[[Any, dict[str, Value], Seeded, Callable[[Selection], Value]], Any]",
) -> Answer:
    if activation.broken is not None:
        return activation.broken
    evaluated = activation.values.get(site.name)
    if evaluated is not None:
        keys_and_values = zip(site.keys, evaluated, strict=True)
        return [
            reported(value, evaluate_one is _guard, for_state=_for_state(key))
            for key, value in keys_and_values
        ]
    if site.needs_worker:
        return NEEDS_WORKER
    if evaluate_one is _guard and not any(isinstance(value, Template) for value in site.cut):
        return [verdict(value) for value in site.cut]
    scope = names(pinned, state, activation, moment)
    selected = _selected(pinned, state, activation)
    places = zip(site.keys, site.cut, strict=True)
    try:
        values = [
            evaluate_one(value, scope, moment.functions(f"{site.name}.{key}"), selected)
            for key, value in places
        ]
    except NeedsData:
        return NEEDS_WORKER
    for number, key in enumerate(site.keys):
        if _for_state(key):
            if is_reference(values[number]):
                return NEEDS_WORKER  # state holds no reference: a worker gives the value
            values[number] = unwrapped(values[number])
    return values


def _for_state(key: str) -> bool:
    """Whether the value of this key of a site goes to the playbook's state."""
    return is_state(key.removeprefix("set:"))


def _value(
    value: Any,
    scope: dict[str, Value],
    functions: Seeded,
    selected: Callable[[Selection], Value],
) -> Any:
    try:
        if isinstance(value, Template) and value.expression is not None:
            result = evaluate_template(value, scope, functions=functions, selected=selected)
            if isinstance(result, Distant):
                if not result.reference.uri:
                    raise NeedsData("")
                return link_to(result.reference)
            if result is None or isinstance(result, str | int | float):
                return result
        return wrapped(render_value(value, scope, functions=functions, selected=selected))
    except (TemplateError, SelectionFailed) as error:
        return failure(error)


def _guard(
    value: Any,
    scope: dict[str, Value],
    functions: Seeded,
    selected: Callable[[Selection], Value],
) -> Any:
    try:
        return guard(value, scope, functions=functions, selected=selected)
    except (TemplateError, SelectionFailed) as error:
        return failure(error)


def reported(value: Selected, as_guard: bool = False, *, for_state: bool = False) -> Any:
    """Convert a value that a worker evaluated into the answer of a server-side expression."""
    if value.error is not None:
        return Failure(code="EXPRESSION", kind="template", message=value.error)
    if value.missing is not None and value.absent and as_guard:
        return False
    if value.missing is not None:
        message = f"{value.missing} is undefined"
        if value.because:
            message += f", because {value.because}"
        return Failure(code="TEMPLATE_UNDEFINED", kind="template", message=message)
    reference = reference_of(value)
    if as_guard:
        return reference is not None or verdict(value.value)
    if reference is not None:
        return link_to(reference)
    if for_state:
        return value.value
    return wrapped(value.value)


def reference_of(selected: Selected) -> Reference | None:
    """The reference that is the selection's value. Older workers report only its address."""
    if selected.stored is not None or selected.reference is None:
        return selected.stored
    return linked({REFERENCE: selected.reference})


def failure(error: Exception) -> Failure:
    return Failure(code=getattr(error, "code", "EXPRESSION"), kind="template", message=str(error))


# ---- scope ------------------------------------------------------------------------------


def names(
    pinned: PinnedPlaybook,
    state: Execution,
    activation: Activation,
    moment: Moment,
) -> dict[str, Value]:
    """The names that a server-side expression sees. Steps are not among them: every part of an
    expression that reads a step is a selection, cut out when the playbook is registered."""
    ctx, args, scratch = (
        with_distant(values) for values in (state.ctx, activation.args, activation.scratch)
    )
    output = view(activation.outcome, activation)
    scope: dict[str, Value] = {
        **pinned.workload,
        "workload": pinned.workload,
        "ctx": ctx,
        "vars": ctx,
        "input": args,
        "args": args,
        "step": scratch,
        "iter": scratch,
        "event": handled_event(activation.event, activation.step, iso(moment.at)),
        **identity(
            state.execution_id,
            state.path,
            state.version,
            state.finished or state.status,
            state.failure,
            state.failed_step,
        ),
    }
    if state.parent is not None and state.parent.iter:
        outer = with_distant(state.parent.iter)
        scope |= {"iter": {"parent": outer, **scratch}, "_loop": outer_iteration(outer)}
    if not pinned.plan.hides_state:
        scope["state"] = visible(state)
    if output is not None:
        if pinned.plan.steps[activation.step].step.loop is not None:
            scope["loop"] = ended_loop(activation.event, activation.outcome)
        scope["output"] = scope["outcome"] = output
        scope["error"] = output.get("error", NO_ERROR)
    return scope


def view(outcome: Envelope | None, activation: Activation | None = None) -> dict[str, Value] | None:
    """The envelope as `output` shows it: everything but the data."""
    if outcome is None:
        return None
    context = {name: value for name, value in outcome.context.items() if name != "selections"}
    output: dict[str, Value] = {
        name: context[name] for name in ("http", "pg", "py", "stats") if name in context
    }
    output["row_count"] = context.get("row_count")
    output["columns"] = context.get("columns")
    output["status"] = "ok" if outcome.ok else "error"
    output["context"] = context
    output["ref"] = outcome.reference.uri if outcome.reference is not None else None
    output["meta"] = msgspec.to_builtins(outcome.meta) if outcome.meta is not None else {}
    if outcome.error is not None:
        output["error"] = outcome.error.shown()
    undefined = NONE_UNDEFINED
    because = outcome.why_no_value("the step")
    if because:
        undefined = {"data": without_value("output.data", because, {})}
    return OptionalMap(output, "error", undefined=undefined)


def _selected(
    pinned: PinnedPlaybook,
    state: Execution,
    activation: Activation,
) -> Callable[[Selection], Value]:
    """A function that gives the value of a selection, as the worker of its step reported it."""

    def resolve(selection: Selection) -> Value:
        envelope: Envelope | None = None
        args: dict[str, Any] = {}
        if selection.step == activation.step and activation.outcome is not None:
            envelope, args = activation.outcome, activation.args
        else:
            record = state.steps.get(selection.step)
            if record is not None:
                envelope = record.result
        selected = envelope.selected(selection.id) if envelope is not None else None
        if selected is None:
            if _is_reported_in_parts(pinned, selection, envelope):
                raise NeedsData(selection.source)
            return _from_envelope(pinned, selection, envelope, args)
        if selected.error is not None:
            raise SelectionFailed(f"{selection.source}: {selected.error}")
        if selected.missing is not None:
            return Undefined(selection.source, selected.missing, selected.absent, selected.because)
        reference = reference_of(selected)
        if reference is not None:
            return Distant(reference)
        return selected.value

    return resolve


def _is_reported_in_parts(
    pinned: PinnedPlaybook,
    selection: Selection,
    envelope: Envelope | None,
) -> bool:
    """Whether a worker of an older release reported this result: it reported the parts of a list
    or map, not the whole."""
    if envelope is None or envelope.reference is None or selection.source[0] not in "[{":
        return False
    return pinned.plan.steps[selection.step].step.loop is None


def _from_envelope(
    pinned: PinnedPlaybook,
    selection: Selection,
    envelope: Envelope | None,
    args: dict[str, Any],
) -> Value:
    """Evaluate a selection that no worker reported: of a loop, of a lost worker, or of a step that
    has not run. Only the envelope and the arguments are known."""
    arguments = with_distant(args)
    scope: dict[str, Value] = {
        **pinned.workload,
        "workload": pinned.workload,
        "input": arguments,
        "args": arguments,
    }
    if envelope is None:
        scope[selection.step] = Undefined(selection.step, selection.step, "step")
    else:
        output = view(envelope) or {}
        value: Value = output
        because = envelope.why_no_value(f"step {selection.step}")
        if because:
            value = without_value(selection.step, because, output)
        scope |= {selection.step: value, "output": output, "outcome": output}
    return probe(parse_expression(selection.source), scope)


def saw(
    pinned: PinnedPlaybook,
    state: Execution,
    activation: Activation,
    site: ExpressionSite,
    arc: int,
    moment: Moment,
) -> dict[str, Any]:
    """The values that a guard used, shortened, for the event `next.evaluated`."""
    guard_template = site.cut[arc]
    if not isinstance(guard_template, Template) or site.needs_worker:
        return {}
    resolve_selection = _selected(pinned, state, activation)
    source = guard_template.source
    seen: dict[str, Any] = {}
    for selection in guard_template.selections[:SAW_VALUES]:
        try:
            value = resolve_selection(selection)
        except Exception as error:  # the error of the guard is what it saw
            value = f"error: {error}"
        seen[selection.source] = _short(value)
    for name in site.ctx:
        if name in state.ctx and f"ctx.{name}" in source and len(seen) < SAW_VALUES:
            seen[f"ctx.{name}"] = _short(state.ctx[name])
    for name, value in visible(state).items():
        if f"state.{name}" in source and len(seen) < SAW_VALUES:
            seen[f"state.{name}"] = _short(value)
    return seen


def _short(value: Value) -> Any:
    """The value if it is small; the address of a reference; `…` for anything larger."""
    if isinstance(value, Undefined):
        return "undefined"
    if isinstance(value, Distant):
        return value.reference.uri
    if is_reference(value):
        return linked(value).uri
    if is_wrapped(value):
        value = value[LITERAL]
    if len(msgspec.json.encode(value)) > SAW_BYTES:
        return "…"
    return value

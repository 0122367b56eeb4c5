"""Server-side expressions: evaluated from envelopes, workload and ctx alone; what needs data is left to a worker.

`evaluate` answers with values, with a Failure, or with NEEDS_WORKER. It is bounded by counting and knows no clock: `now()`,
`uuid()` and `random()` are derived from the event being handled, so that replay gives the same.
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

SAW_VALUES, SAW_BYTES = 8, 200


class NeedsWorker:
    """The answer of a site that cannot be evaluated without opening data."""


NEEDS_WORKER = NeedsWorker()
Answer = list[Any] | Failure | NeedsWorker


class Moment(Struct, frozen=True):
    """What a decision may know of now: the event being handled."""

    key: str
    at: Micros

    def functions(self, place: str) -> Seeded:
        """`now()`, `uuid()` and `random()` for the template at this place."""
        return Seeded(f"{self.key}\0{place}", iso(self.at))


class Distant:
    """A value that is a reference: passing it on is fine, looking into it needs a worker."""

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
    """The value with every link in it, also inside maps, as a Distant."""
    if not isinstance(value, dict):
        return value
    if is_reference(value):
        return Distant(linked(value))
    if is_wrapped(value):
        return value[LITERAL]
    return {name: with_distant(part) for name, part in value.items()}


class SelectionFailed(Exception):
    """A selection that is used could not be computed where the data is."""


# ---- evaluating -------------------------------------------------------------------------


def evaluate(
    fixed: PinnedPlaybook,
    state: Execution,
    activation: Activation,
    site: ExpressionSite,
    moment: Moment,
) -> Answer:
    """The values of every expression of the site, in order. A list or map by reference is a link; data that looks like one is
    wrapped. State holds no links, so its values are as they are."""
    return _each(fixed, state, activation, site, moment, _value)


def verdicts(
    fixed: PinnedPlaybook,
    state: Execution,
    activation: Activation,
    site: ExpressionSite,
    moment: Moment,
) -> Answer:
    """For guards: True, False or the Failure of each, none of them tried in vain once one needs a worker."""
    return _each(fixed, state, activation, site, moment, _guard)


def value_of(
    fixed: PinnedPlaybook,
    state: Execution,
    activation: Activation,
    template: Any,
    moment: Moment,
    place: str,
) -> Any | Failure:
    """One value from workload, ctx and identity alone; what would need a worker is a Failure."""
    scope = names(fixed, state, activation, moment)
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
    fixed: PinnedPlaybook,
    state: Execution,
    activation: Activation,
    site: ExpressionSite,
    moment: Moment,
    one: "Callable[[Any, dict[str, Value], Seeded, Callable[[Selection], Value]], Any]",
) -> Answer:
    if activation.broken is not None:
        return activation.broken
    known = activation.values.get(site.name)
    if known is not None:
        keys_and_values = zip(site.keys, known, strict=True)
        return [
            reported(value, one is _guard, for_state=_for_state(key))
            for key, value in keys_and_values
        ]
    if site.needs_worker:
        return NEEDS_WORKER
    if one is _guard and not any(isinstance(value, Template) for value in site.cut):
        return [verdict(value) for value in site.cut]
    scope = names(fixed, state, activation, moment)
    selected = _selected(fixed, state, activation)
    places = zip(site.keys, site.cut, strict=True)
    try:
        made = [
            one(value, scope, moment.functions(f"{site.name}.{key}"), selected)
            for key, value in places
        ]
    except NeedsData:
        return NEEDS_WORKER
    for_state = [_for_state(key) for key in site.keys]
    if any(state and is_reference(value) for state, value in zip(for_state, made, strict=True)):
        return NEEDS_WORKER  # state holds no reference: a worker gives the value
    return [
        unwrapped(value) if state else value for state, value in zip(for_state, made, strict=True)
    ]


def _for_state(key: str) -> bool:
    """Whether the expression of this key of a site is written to the playbook's state."""
    return is_state(key.removeprefix("set:"))


def _value(
    value: Any, scope: dict[str, Value], functions: Seeded, selected: Callable[[Selection], Value]
) -> Any:
    try:
        if isinstance(value, Template) and value.expression is not None:
            made = evaluate_template(value, scope, functions=functions, selected=selected)
            if isinstance(made, Distant):
                if not made.reference.uri:
                    raise NeedsData("")
                return link_to(made.reference)
            if made is None or isinstance(made, str | int | float):
                return made
        return wrapped(render_value(value, scope, functions=functions, selected=selected))
    except (TemplateError, SelectionFailed) as error:
        return failure(error)


def _guard(
    value: Any, scope: dict[str, Value], functions: Seeded, selected: Callable[[Selection], Value]
) -> Any:
    try:
        return guard(value, scope, functions=functions, selected=selected)
    except (TemplateError, SelectionFailed) as error:
        return failure(error)


def reported(value: Selected, as_guard: bool = False, *, for_state: bool = False) -> Any:
    """What a worker evaluated for us, as `evaluate` answers it."""
    if value.error is not None:
        return Failure(code="EXPRESSION", kind="template", message=value.error)
    if value.missing is not None and value.absent and as_guard:
        return False
    if value.missing is not None:
        because = f", because {value.because}" if value.because else ""
        return Failure(
            code="TEMPLATE_UNDEFINED",
            kind="template",
            message=f"{value.missing} is undefined{because}",
        )
    reference = reference_of(value)
    if reference is not None:
        return True if as_guard else link_to(reference)
    if as_guard:
        return verdict(value.value)
    return value.value if for_state else wrapped(value.value)


def reference_of(selected: Selected) -> Reference | None:
    if selected.stored is not None or selected.reference is None:
        return selected.stored
    return linked({REFERENCE: selected.reference})


def failure(error: Exception) -> Failure:
    return Failure(code=getattr(error, "code", "EXPRESSION"), kind="template", message=str(error))


# ---- scope ------------------------------------------------------------------------------


def names(
    fixed: PinnedPlaybook, state: Execution, activation: Activation, moment: Moment
) -> dict[str, Value]:
    """What a server-side expression sees. Steps are not among the names: every part that reads one was cut out."""
    ctx, args, scratch = (
        with_distant(values) for values in (state.ctx, activation.args, activation.scratch)
    )
    output = view(activation.outcome, activation)
    scope: dict[str, Value] = {
        **fixed.workload,
        "workload": fixed.workload,
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
    outer = with_distant(state.parent.iter) if state.parent is not None else {}
    if outer:
        scope |= {"iter": {"parent": outer, **scratch}, "_loop": outer_iteration(outer)}
    if not fixed.plan.hides_state:
        scope["state"] = visible(state)
    if output is not None:
        if fixed.plan.steps[activation.step].step.loop is not None:
            scope["loop"] = ended_loop(activation.event, activation.outcome)
        scope["output"] = scope["outcome"] = output
        scope["error"] = output.get("error", NO_ERROR)
    return scope


def view(outcome: Envelope | None, activation: Activation | None = None) -> dict[str, Value] | None:
    """The envelope as `output` shows it: everything but the data."""
    if outcome is None:
        return None
    context = {name: value for name, value in outcome.context.items() if name != "selections"}
    shown: dict[str, Value] = {
        name: context[name] for name in ("http", "pg", "py", "stats") if name in context
    }
    shown |= {"row_count": context.get("row_count"), "columns": context.get("columns")}
    shown |= {"status": outcome.status if outcome.ok else "error", "context": context}
    shown["ref"] = outcome.reference.uri if outcome.reference is not None else None
    shown["meta"] = msgspec.to_builtins(outcome.meta) if outcome.meta is not None else {}
    if outcome.error is not None:
        shown["error"] = outcome.error.shown()
    if shown["status"] == "break":
        shown["status"] = "ok"
    because = outcome.why_no_value("the step")
    no_data = {"data": without_value("output.data", because, {})} if because else NONE_UNDEFINED
    return OptionalMap(shown, "error", undefined=no_data)


def _selected(
    fixed: PinnedPlaybook, state: Execution, activation: Activation
) -> Callable[[Selection], Value]:
    def resolve(selection: Selection) -> Value:
        own = selection.step == activation.step and activation.outcome is not None
        record = state.steps.get(selection.step)
        envelope = activation.outcome if own else (record.result if record is not None else None)
        found = envelope.selected(selection.id) if envelope is not None else None
        if found is None and _is_reported_in_parts(fixed, selection, envelope):
            raise NeedsData(selection.source)
        if found is None:
            return _from_envelope(fixed, selection, envelope, activation.args if own else {})
        if found.error is not None:
            raise SelectionFailed(f"{selection.source}: {found.error}")
        if found.missing is not None:
            return Undefined(selection.source, found.missing, found.absent, found.because)
        reference = reference_of(found)
        return Distant(reference) if reference is not None else found.value

    return resolve


def _is_reported_in_parts(
    fixed: PinnedPlaybook, selection: Selection, envelope: Envelope | None
) -> bool:
    """Whether a worker of an older release has reported this result: it gave the parts of a list or map, not the whole."""
    if envelope is None or envelope.reference is None or selection.source[0] not in "[{":
        return False
    return fixed.plan.steps[selection.step].step.loop is None


def _from_envelope(
    fixed: PinnedPlaybook, selection: Selection, envelope: Envelope | None, args: dict[str, Any]
) -> Value:
    """No worker reported this selection (a loop, a lost worker, a step that has not run): the envelope is all there is, and
    what arcs brought."""
    given = with_distant(args)
    scope: dict[str, Value] = {
        **fixed.workload,
        "workload": fixed.workload,
        "input": given,
        "args": given,
    }
    if envelope is None:
        scope[selection.step] = Undefined(selection.step, selection.step, "step")
    else:
        known = view(envelope) or {}
        because = envelope.why_no_value(f"step {selection.step}")
        value = without_value(selection.step, because, known) if because else known
        scope |= {selection.step: value, "output": known, "outcome": known}
    return probe(parse_expression(selection.source), scope)


def saw(
    fixed: PinnedPlaybook,
    state: Execution,
    activation: Activation,
    site: ExpressionSite,
    arc: int,
    moment: Moment,
) -> dict[str, Any]:
    """The values a guard looked at, small ones only: for `next.evaluated`."""
    source = site.cut[arc]
    if not isinstance(source, Template) or site.needs_worker:
        return {}
    selected = _selected(fixed, state, activation)
    seen: dict[str, Any] = {}
    for selection in source.selections[:SAW_VALUES]:
        try:
            value = selected(selection)
        except Exception as error:  # whatever made the guard fail is what it saw
            value = f"error: {error}"
        seen[selection.source] = _short(value)
    for name in site.ctx:
        if name in state.ctx and f"ctx.{name}" in source.source and len(seen) < SAW_VALUES:
            seen[f"ctx.{name}"] = _short(state.ctx[name])
    for name, value in visible(state).items():
        if f"state.{name}" in source.source and len(seen) < SAW_VALUES:
            seen[f"state.{name}"] = _short(value)
    return seen


def _short(value: Value) -> Any:
    if isinstance(value, Undefined):
        return "undefined"
    if isinstance(value, Distant):
        return value.reference.uri
    if is_reference(value):
        return linked(value).uri
    if is_wrapped(value):
        value = value[LITERAL]
    return value if len(msgspec.json.encode(value)) <= SAW_BYTES else "…"

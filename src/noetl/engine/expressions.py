"""Server-side expressions: evaluated from envelopes, workload and ctx. Workers evaluate the rest.

An answer is a list of values, a Failure, or NEEDS_WORKER if an expression needs data. Evaluation
is bounded by counting operations, and it knows no clock: `now()`, `uuid()` and `random()` are
derived from the event being handled, so that a replay gives the same values.
"""

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from noetl.engine.playbook_state import get_visible_state
from noetl.engine.state import Activation, Execution, PinnedPlaybook
from noetl.model.clock import format_iso
from noetl.model.envelope import Envelope, Selected
from noetl.model.errors import Failure
from noetl.model.ids import Micros
from noetl.model.reference import Reference
from noetl.playbook.assignments import (
    LINK_KEY,
    LITERAL_KEY,
    is_reference,
    is_state,
    is_wrapped,
    make_link,
    read_link,
    replace_links,
    unwrap_links,
    wrap_links,
)
from noetl.playbook.plan import ExpressionSite
from noetl.template.errors import NeedsData, TemplateError
from noetl.template.limits import SERVER_LIMITS
from noetl.template.model import Selection, SelectionResolver, Template
from noetl.template.parsing import parse_expression
from noetl.template.rendering import Renderer, is_guard_true
from noetl.template.replay_functions import DerivedFunctions
from noetl.template.scopes import (
    build_ended_loop,
    build_handled_event,
    build_identity,
    build_outer_iteration,
    build_output_facts,
)
from noetl.template.values import (
    NO_ERROR,
    NO_UNDEFINED_KEYS,
    OptionalMap,
    Undefined,
    Value,
    make_failed_value,
)

MAX_SEEN_VALUES = 8  # in one verdict of `next.evaluated`
MAX_SEEN_VALUE_BYTES = 200  # of one value, as JSON


class NeedsWorker:
    """The answer for a site that cannot be evaluated without opening data."""


NEEDS_WORKER = NeedsWorker()
Answer = list[Any] | Failure | NeedsWorker


class Moment(Struct, frozen=True):
    """The event being handled: all that a decision may know of the present time."""

    key: str
    at: Micros

    def make_renderer(self, place: str, selected: SelectionResolver | None = None) -> Renderer:
        """A renderer for the template at this place. Its functions give the same in a replay."""
        functions = DerivedFunctions(f"{self.key}\0{place}", format_iso(self.at))
        return Renderer(SERVER_LIMITS, functions, selected)


class DistantValue:
    """A value by reference. Expressions may pass it on; looking into it needs a worker."""

    def __init__(self, reference: Reference) -> None:
        self.reference = reference

    def read_member(self, name: str) -> Value:
        raise NeedsData(self.reference.uri)

    def read_item(self, index: int | slice) -> Value:
        raise NeedsData(self.reference.uri)

    def read_length(self) -> int:
        raise NeedsData(self.reference.uri)

    def load_plain(self) -> Value:
        raise NeedsData(self.reference.uri)


class SelectionFailed(Exception):
    """The worker that has the data could not compute a selection that is used here."""


# ---- evaluating -------------------------------------------------------------------------


def evaluate_on_server(
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
    return _evaluate_each(pinned, state, activation, site, moment, _evaluate_value)


def evaluate_guards(
    pinned: PinnedPlaybook,
    state: Execution,
    activation: Activation,
    site: ExpressionSite,
    moment: Moment,
) -> Answer:
    """True, False or a Failure for each guard of the site; NEEDS_WORKER as soon as one needs
    data."""
    return _evaluate_each(pinned, state, activation, site, moment, _evaluate_server_guard)


def render_server_value(
    pinned: PinnedPlaybook,
    state: Execution,
    activation: Activation,
    template: Any,
    moment: Moment,
    place: str,
) -> Any | Failure:
    """Render one template from workload, ctx and identity. A template that needs data fails."""
    scope = make_server_names(pinned, state, activation, moment)
    try:
        return moment.make_renderer(place).render_value(template, scope)
    except NeedsData:
        return Failure(
            code="EXPRESSION",
            kind="template",
            message="the value is stored by reference, a scalar is needed",
        )
    except TemplateError as error:
        return make_template_failure(error)


def _evaluate_each(
    pinned: PinnedPlaybook,
    state: Execution,
    activation: Activation,
    site: ExpressionSite,
    moment: Moment,
    evaluate_one: Callable[[Any, dict[str, Value], Renderer], Any],
) -> Answer:
    if activation.broken is not None:
        return activation.broken
    evaluated = activation.values.get(site.name)
    if evaluated is not None:
        keys_and_values = zip(site.keys, evaluated, strict=True)
        return [
            convert_selected(
                value, evaluate_one is _evaluate_server_guard, for_state=_is_for_state(key)
            )
            for key, value in keys_and_values
        ]
    if site.needs_worker:
        return NEEDS_WORKER
    if site.is_literal and evaluate_one is _evaluate_server_guard:
        return [is_guard_true(value) for value in site.cut]
    scope = make_server_names(pinned, state, activation, moment)
    selected = _make_selection_reader(pinned, state, activation)
    places = zip(site.keys, site.cut, strict=True)
    try:
        values = [
            evaluate_one(value, scope, moment.make_renderer(f"{site.name}.{key}", selected))
            for key, value in places
        ]
    except NeedsData:
        return NEEDS_WORKER
    for number, key in enumerate(site.keys):
        if _is_for_state(key):
            if is_reference(values[number]):
                return NEEDS_WORKER  # state holds no reference: a worker gives the value
            values[number] = unwrap_links(values[number])
    return values


def _is_for_state(key: str) -> bool:
    """Whether the value of this key of a site goes to the playbook's state."""
    return is_state(key.removeprefix("set:"))


def _evaluate_value(value: Any, scope: dict[str, Value], renderer: Renderer) -> Any:
    try:
        if isinstance(value, Template) and value.expression is not None:
            result = renderer.evaluate(value, scope)
            if isinstance(result, DistantValue):
                if not result.reference.uri:
                    raise NeedsData("")
                return make_link(result.reference)
            if result is None or isinstance(result, str | int | float):
                return result
        return wrap_links(renderer.render_value(value, scope))
    except (TemplateError, SelectionFailed) as error:
        return make_template_failure(error)


def _evaluate_server_guard(value: Any, scope: dict[str, Value], renderer: Renderer) -> Any:
    try:
        return renderer.evaluate_guard(value, scope)
    except (TemplateError, SelectionFailed) as error:
        return make_template_failure(error)


def convert_selected(
    value: Selected,
    as_guard: bool = False,
    *,
    for_state: bool = False,
) -> Any:
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
    reference = get_selected_reference(value)
    if as_guard:
        return reference is not None or is_guard_true(value.value)
    if reference is not None:
        return make_link(reference)
    if for_state:
        return value.value
    return wrap_links(value.value)


def get_selected_reference(selected: Selected) -> Reference | None:
    """The reference that is the selection's value. Older workers report only its address."""
    if selected.stored is not None or selected.reference is None:
        return selected.stored
    return read_link({LINK_KEY: selected.reference})


def make_template_failure(error: Exception) -> Failure:
    return Failure(code=getattr(error, "code", "EXPRESSION"), kind="template", message=str(error))


# ---- scope ------------------------------------------------------------------------------


def make_server_names(
    pinned: PinnedPlaybook,
    state: Execution,
    activation: Activation,
    moment: Moment,
) -> dict[str, Value]:
    """The names that a server-side expression sees. Steps are not among them: every part of an
    expression that reads a step is a selection, cut out when the playbook is registered."""
    ctx, args, scratch = (
        replace_links(values, DistantValue)
        for values in (state.ctx, activation.args, activation.scratch)
    )
    scope: dict[str, Value] = {
        **pinned.workload,
        "workload": pinned.workload,
        "ctx": ctx,
        "vars": ctx,
        "input": args,
        "args": args,
        "step": scratch,
        "iter": scratch,
        "event": build_handled_event(activation.event, activation.step, format_iso(moment.at)),
        **build_identity(
            state.execution_id,
            state.path,
            state.version,
            state.finished or state.status,
            state.failure,
            state.failed_step,
        ),
    }
    if state.parent is not None and state.parent.iter:
        outer = replace_links(state.parent.iter, DistantValue)
        scope |= {"iter": {"parent": outer, **scratch}, "_loop": build_outer_iteration(outer)}
    if not pinned.plan.hides_state:
        scope["state"] = get_visible_state(state)
    if activation.outcome is not None:
        if pinned.plan.steps[activation.step].step.loop is not None:
            scope["loop"] = build_ended_loop(activation.event, activation.outcome)
        output = make_output_view(activation.outcome)
        scope["output"] = scope["outcome"] = output
        scope["error"] = output.get("error", NO_ERROR)
    return scope


def make_output_view(outcome: Envelope) -> dict[str, Value]:
    """The envelope as `output` shows it: everything but the data."""
    undefined = NO_UNDEFINED_KEYS
    because = outcome.explain_no_value("the step")
    if because:
        undefined = {"data": make_failed_value("output.data", because, {})}
    return OptionalMap(build_output_facts(outcome), "error", undefined=undefined)


def _make_selection_reader(
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
        selected = envelope.find_selection(selection.id) if envelope is not None else None
        if selected is None:
            if _is_reported_in_parts(pinned, selection, envelope):
                raise NeedsData(selection.source)
            return _probe_envelope(pinned, selection, envelope, args)
        if selected.error is not None:
            raise SelectionFailed(f"{selection.source}: {selected.error}")
        if selected.missing is not None:
            return Undefined(selection.source, selected.missing, selected.absent, selected.because)
        reference = get_selected_reference(selected)
        if reference is not None:
            return DistantValue(reference)
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


def _probe_envelope(
    pinned: PinnedPlaybook,
    selection: Selection,
    envelope: Envelope | None,
    args: dict[str, Any],
) -> Value:
    """Evaluate a selection that no worker reported: of a loop, of a lost worker, or of a step that
    has not run. Only the envelope and the arguments are known."""
    arguments = replace_links(args, DistantValue)
    scope: dict[str, Value] = {
        **pinned.workload,
        "workload": pinned.workload,
        "input": arguments,
        "args": arguments,
    }
    if envelope is None:
        scope[selection.step] = Undefined(selection.step, selection.step, "step")
    else:
        output = make_output_view(envelope)
        value: Value = output
        because = envelope.explain_no_value(f"step {selection.step}")
        if because:
            value = make_failed_value(selection.step, because, output)
        scope |= {selection.step: value, "output": output, "outcome": output}
    return Renderer().probe(parse_expression(selection.source), scope)


def list_seen_values(
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
    resolve_selection = _make_selection_reader(pinned, state, activation)
    source = guard_template.source
    seen: dict[str, Any] = {}
    for selection in guard_template.selections[:MAX_SEEN_VALUES]:
        try:
            value = resolve_selection(selection)
        except Exception as error:  # the error of the guard is what it saw
            value = f"error: {error}"
        seen[selection.source] = _shorten_seen_value(value)
    for name in site.ctx:
        if name in state.ctx and f"ctx.{name}" in source and len(seen) < MAX_SEEN_VALUES:
            seen[f"ctx.{name}"] = _shorten_seen_value(state.ctx[name])
    for name, value in get_visible_state(state).items():
        if f"state.{name}" in source and len(seen) < MAX_SEEN_VALUES:
            seen[f"state.{name}"] = _shorten_seen_value(value)
    return seen


def _shorten_seen_value(value: Value) -> Any:
    """The value if it is small; the address of a reference; `…` for anything larger."""
    if isinstance(value, Undefined):
        return "undefined"
    if isinstance(value, DistantValue):
        return value.reference.uri
    if is_reference(value):
        return read_link(value).uri
    if is_wrapped(value):
        value = value[LITERAL_KEY]
    if len(msgspec.json.encode(value)) > MAX_SEEN_VALUE_BYTES:
        return "…"
    return value

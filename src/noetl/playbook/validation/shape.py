"""Translates the errors of the model into plain findings at the right position."""

import re
import types
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from noetl.playbook.dialect.editor import Editor, list_maps
from noetl.playbook.findings import Code
from noetl.playbook.model import BUILT_IN_TASKS, Model, OutsideTask, Playbook, Task
from noetl.playbook.text import Map, Mark, Seq, strip_marks
from noetl.playbook.validation.document_facts import get_text

Kinds = Mapping[str, type[BaseModel] | None]
Path = tuple[str | int, ...]
OutsideTasks = tuple[tuple[str | None, Map], ...]  # the step and the task


_TYPES = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "dict_type": "a mapping",
    "list_type": "a list",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}
_BOUNDS = {
    "greater_than_equal": ("ge", "at least"),
    "greater_than": ("gt", "more than"),
    "less_than_equal": ("le", "at most"),
    "less_than": ("lt", "less than"),
}
_KIND_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*", re.ASCII)
# Keys of other workflow tools, and NoETL's key with the same meaning.
_EQUIVALENT_KEYS = {
    "name": "step",
    "id": "step",
    "condition": "when",
    "if": "when",
}
_LOOP_HINT = "write `loop: {in: …, iterator: item}`"
_BEFORE_HINT = "write `next` in the step that runs before: `next: [this_step]`"
_WHEN_HINT = "write the condition in the arc that leads here, `next: [{step: …, when: …}]`, or `spec: {policy: {admit: …}}`"
# Keys of other workflow tools on a step that have no equivalent key, and what to write instead.
_REPLACEMENT_HINTS = {
    "depends_on": _BEFORE_HINT,
    "needs": _BEFORE_HINT,
    "on_error": 'write `next: [{step: …, when: "{{ error is defined }}"}]`',
    "foreach": _LOOP_HINT,
    "for_each": _LOOP_HINT,
    "with_items": _LOOP_HINT,
    "retries": "write `retry: 3`, or a policy of the task with `do: retry`",
    "condition": _WHEN_HINT,
    "if": _WHEN_HINT,
}
_CHOICES = {
    "`store`": "`disk` is the store of large results; NOETL_STORAGE_CLOUD_TIER says where that is"
}


def parse(document: Map, editor: Editor) -> Playbook | None:
    """The model of a document with all short and old forms spelled out; None if findings say why
    not.
    """
    try:
        return Playbook.model_validate(strip_marks(document))
    except ValidationError as exc:
        _report_errors(document, exc.errors(include_url=False), editor)
        return None


def find_similar_name(name: str, known: Iterable[str]) -> str | None:
    close = get_close_matches(name, list(known), n=1, cutoff=0.6)
    return next(iter(close), None)


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    close = find_similar_name(name, known)
    if not close:
        return None
    return f"did you mean `{close}`?"


def _report_errors(document: Map, errors: list[ErrorDetails], editor: Editor) -> None:
    """Report one finding per place; the alternatives of a union are one place."""
    by_place: dict[Path, list[ErrorDetails]] = {}
    for error in errors:
        path = _find_document_path(document, error["loc"], error["type"])
        by_place.setdefault(path, []).append(error)
    for path, group in by_place.items():
        has_error_below = any(other[: len(path)] == path != other for other in by_place)
        if has_error_below and len(group[0]["loc"]) > len(path):
            continue  # another alternative of the union got further
        editor.step = _find_step_at(document, path)
        code, message, hint = _explain_error(document, path, _choose_error(group), group)
        parent, key = _find_parent(document, path, missing=group[0]["type"] == "missing")
        editor.add_finding(parent, key, code, message, hint, "error")
    editor.step = None


def _choose_error(group: list[ErrorDetails]) -> ErrorDetails:
    for wanted in ("value_error", "extra_forbidden", "missing"):
        for error in group:
            if error["type"] == wanted:
                return error
    if group[-1]["type"] in _BOUNDS:
        return group[-1]
    return group[0]


def _find_document_path(
    document: Any,
    loc: tuple[int | str, ...],
    kind: str,
) -> Path:
    """The location without the names of union alternatives, which are not in the document."""
    path: list[str | int] = []
    node = document
    for index, part in enumerate(loc):
        last = index == len(loc) - 1
        if isinstance(node, dict):
            if part in node or (last and kind == "missing"):
                path.append(part)
                node = node.get(str(part))
        elif isinstance(node, list) and isinstance(part, int) and part < len(node):
            path.append(part)
            node = node[part]
    return tuple(path)


def _find_parent(
    document: Any,
    path: Path,
    missing: bool,
) -> tuple[Any, str | int | None]:
    node = _get_node_at(document, path[:-1])
    if not path or (missing and isinstance(node, dict)):
        return _find_holder(document, path[:-1])
    return node, path[-1]


def _find_holder(document: Any, path: Path) -> tuple[Any, str | int | None]:
    """A missing field is reported at its mapping: at the key, or at the first key of a list item."""
    if not path:
        return document, None
    return _get_node_at(document, path[:-1]), path[-1]


def _find_step_at(document: Any, path: Path) -> str | None:
    if len(path) < 2 or path[0] != "workflow" or not isinstance(path[1], int):
        return None
    return get_text(document["workflow"][path[1]], "step")


def _explain_error(
    document: Any, path: Path, error: ErrorDetails, group: list[ErrorDetails]
) -> tuple[Code, str, str | None]:
    kind, context = error["type"], error.get("ctx", {})
    where = _name_place(path)
    if kind == "extra_forbidden":
        return _explain_unknown_key(document, path)
    if kind == "missing":
        message = f"{where} is missing{_name_kind(document, path)}"
        return Code.MISSING_FIELD, message, _hint_for_missing(document, path)
    if kind == "value_error":
        message = str(context.get("error", error["msg"])).removeprefix("Value error, ")
        if "duration" in message and "wait takes" not in message:
            return Code.BAD_DURATION, message, None
        return Code.BAD_VALUE, message, None
    if kind == "literal_error":
        return _explain_wrong_choice(where, error)
    if kind in ("string_pattern_mismatch", "string_too_long"):
        message = f"{error['input']!r} is not a name{_name_kind(document, path)}"
        hint = "letters, digits, `_` and `-`, at most 128; a letter or `_` first"
        return Code.BAD_NAME, message, hint
    if kind in _BOUNDS:
        bound, words = _BOUNDS[kind]
        message = f"{where} must be {words} {context[bound]}, not {error['input']}"
        return Code.BAD_VALUE, message, None
    if kind == "too_short":
        return Code.BAD_VALUE, f"{where} must not be empty", None
    if kind in _TYPES:
        return _explain_wrong_type(path, where, error["input"], group)
    return Code.BAD_VALUE, f"{where}: {error['msg']}", None


def _name_place(path: Path) -> str:
    """The nearest key of a path, in backquotes."""
    if not path:
        return "the playbook"
    keys = [part for part in path if isinstance(part, str)]
    if not keys:
        return "`the playbook`"
    return f"`{keys[-1]}`"


def _explain_wrong_type(
    path: Path, where: str, value: Any, group: list[ErrorDetails]
) -> tuple[Code, str, str | None]:
    if path[-3:-1] == ("next", "arcs"):
        hint = "`next: done`, or `next: [{step: done, when: …}]`"
        return Code.BAD_TYPE, f"`next` must name a step, not {_describe_value(value)}", hint
    types_wanted = [_TYPES[item["type"]] for item in group if item["type"] in _TYPES]
    wanted = list(dict.fromkeys(types_wanted))
    if path[-1:] == ("tool",):
        wanted = ["a task (a mapping with `kind`)", "a list of tasks"]
    message = f"{where} must be {' or '.join(wanted)}, not {_describe_value(value)}"
    return Code.BAD_TYPE, message, None


def _explain_wrong_choice(where: str, error: ErrorDetails) -> tuple[Code, str, str | None]:
    expected = str(error.get("ctx", {}).get("expected", ""))
    given = error["input"]
    message = f"{where} must be {expected}, not {_describe_value(given)}"
    hint = None
    if isinstance(given, str):
        parts = expected.replace(" or ", ", ").split(", ")
        hint = did_you_mean(given, [part.strip("'") for part in parts])
    return Code.BAD_VALUE, message, hint or _CHOICES.get(where)


def _describe_value(value: Any) -> str:
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if value is None:
        return "nothing"
    return repr(value)[:60]


def _hint_for_missing(document: Any, path: Path) -> str | None:
    name = str(path[-1])
    keys = _iterate_written_keys(_get_node_at(document, path[:-1]))
    written = find_similar_name(name, [key for key in keys if key not in Task.model_fields])
    if written is not None:
        return f"did you mean `{name}:` where it says `{written}:`?"
    return {
        "metadata": "every playbook has `metadata: {name: …}`",
        "workflow": "every playbook has `workflow:`, a list of steps",
        "step": "a step begins with `- step: name`; an arc names its target with `step:`",
        "kind": "name the tool, for example `kind: python`",
    }.get(name)


def _iterate_written_keys(node: Any) -> Iterator[str]:
    """The keys of a mapping as they were written.

    The keys of a task without a kind are under `options`, those of a labelled task one level deeper.
    """
    if not isinstance(node, dict):
        return
    for key, value in node.items():
        if key != "options" or not isinstance(value, dict):
            yield key
            continue
        yield from value
        for inner in value.values():
            if isinstance(inner, dict):
                yield from inner


def _name_kind(document: Any, path: Path) -> str:
    """` in http` if the mapping at the path's end is a task of that kind."""
    kind = get_text(_get_node_at(document, path[:-1]), "kind")
    if kind is None or len(path) < 2 or "metadata" in path:
        return ""
    return f" in {kind}"


def _explain_unknown_key(document: Any, path: Path) -> tuple[Code, str, str | None]:
    key = str(path[-1])
    message = f"unknown key `{key}`{_name_kind(document, path)}"
    known = _list_fields_at(document, path[:-1])
    written = _list_written_keys(_get_node_at(document, path[:-1]))
    free = [name for name in known if name not in written]
    renamed = _EQUIVALENT_KEYS.get(key)
    if renamed in free:
        return Code.UNKNOWN_KEY, message, f"did you mean `{renamed}`?"
    if key in _REPLACEMENT_HINTS and _is_step(path[:-1]):
        return Code.UNKNOWN_KEY, message, _REPLACEMENT_HINTS[key]
    hint = did_you_mean(key, free)
    if hint is None and known:
        hint = f"known here: {', '.join(sorted(known))}"
    return Code.UNKNOWN_KEY, message, hint


def _is_step(path: Path) -> bool:
    return len(path) == 2 and path[0] == "workflow"


def _get_node_at(document: Any, path: Path) -> Any:
    node = document
    for part in path:
        node = node[part]
    return node


def _list_written_keys(node: Any) -> frozenset[str]:
    """The keys that the author wrote, by their old and new names.

    A key that a short form stands for does not count: it has the position of the key that caused
    it, which is still there.
    """
    if not isinstance(node, Map):
        return frozenset()
    first_by_place: dict[Mark, str] = {}
    for key, (place, _) in node.marks.items():
        first_by_place.setdefault(place, key)
    firsts = frozenset(first_by_place.values())
    renamed: set[str] = set()
    for key, (place, _) in node.marks.items():
        if first_by_place[place] not in node:
            renamed.add(key)
    return firsts | renamed


def _list_fields_at(document: Any, path: Path) -> list[str]:
    """The keys that the model has at a path of the document."""
    models: list[type[Model]] = [Playbook]
    node: Any = document
    for part in path:
        node = node[part]
        if isinstance(part, str):
            annotations = [_find_field(model, part) for model in models]
            models = [inner for annotation in annotations for inner in _find_models(annotation)]
        if isinstance(node, dict) and any(issubclass(model, Task) for model in models):
            models = [BUILT_IN_TASKS.get(str(node.get("kind")), OutsideTask)]
    names: dict[str, None] = {}
    for model in models:
        for name, field in model.model_fields.items():
            names[field.alias or name] = None
    return list(names)


def _find_field(model: type[Model], key: str) -> Any:
    for name, field in model.model_fields.items():
        if key in (name, field.alias):
            return field.annotation
    return None


def _find_models(annotation: Any) -> list[type[Model]]:
    if isinstance(annotation, type) and get_origin(annotation) is None:
        return [annotation] if issubclass(annotation, Model) else []
    if hasattr(annotation, "__metadata__"):
        return _find_models(get_args(annotation)[0])
    if get_origin(annotation) not in (Union, types.UnionType, list):
        return []
    models: list[type[Model]] = []
    for part in get_args(annotation):
        models += _find_models(part)
    return models


def find_outside_tasks(document: Map) -> OutsideTasks:
    """The tasks of kinds that are not built in."""
    found: list[tuple[str | None, Map]] = []
    for step, task in iterate_tasks(document):
        kind = task.get("kind")
        if isinstance(kind, str) and kind not in BUILT_IN_TASKS:
            found.append((step, task))
    return tuple(found)


def check_outside_tasks(tasks: OutsideTasks, editor: Editor, kinds: Kinds) -> None:
    """Kinds must be known. A kind that comes by entry point checks its options by its own model."""
    for step, task in tasks:
        kind = task["kind"]
        editor.step = step
        if kind not in kinds:
            _report_unknown_kind(task, kind, [*BUILT_IN_TASKS, *kinds], editor)
            continue
        model = kinds[kind]
        if model is not None:
            _check_own_model(task, model, editor)


def _report_unknown_kind(
    task: Any,
    kind: str,
    known: list[str],
    editor: Editor,
) -> None:
    """A kind that resembles a known one is misspelled. Any other name may come with a package that
    is installed on the workers.
    """
    place = Seq(editor.get_value_mark(task, "kind"))
    meant = did_you_mean(kind, known)
    names = f"known kinds: {', '.join(sorted(known))}"
    if meant or not _KIND_NAME.fullmatch(kind):
        editor.add_error(place, None, Code.UNKNOWN_KIND, f"unknown kind `{kind}`", meant or names)
    else:
        hint = f"install the package that brings it, here and where workers run; {names}"
        editor.add_finding(
            place, None, Code.UNKNOWN_KIND, f"no tool `{kind}` here", hint, "warning"
        )


def _check_own_model(task: Any, model: type[BaseModel], editor: Editor) -> None:
    options = task.get("options", {})
    try:
        model.model_validate(strip_marks(options))
    except ValidationError as exc:
        for error in exc.errors(include_url=False):
            key = next((part for part in error["loc"] if isinstance(part, str)), None)
            code = {"extra_forbidden": Code.UNKNOWN_KEY, "missing": Code.MISSING_FIELD}.get(
                error["type"], Code.BAD_VALUE
            )
            message = f"`{key}` of {task['kind']}: {error['msg']}"
            if key in options:
                editor.add_finding(options, key, code, message, None, "error")
            else:
                editor.add_finding(task, "kind", code, message, None, "error")


def iterate_tasks(document: Any) -> Iterable[tuple[str | None, Any]]:
    """(step, task) of every task in the document; the step is None for the workbook."""
    for step in list_maps(document.get("workflow")):
        name = get_text(step, "step")
        for task in list_maps(step.get("tool")):
            yield name, task
    for entry in list_maps(document.get("workbook")):
        if isinstance(entry.get("tool"), dict):
            yield None, entry["tool"]

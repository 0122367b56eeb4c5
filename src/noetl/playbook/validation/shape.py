"""What the model refuses, said in plain words and at the right place."""

import re
import types
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from noetl.playbook.dialect.editor import Editor
from noetl.playbook.findings import Code
from noetl.playbook.model import BUILT_IN, Model, OutsideTask, Playbook, Task
from noetl.playbook.text import Map, Mark, Seq, plain

Kinds = Mapping[str, type[BaseModel] | None]
Path = tuple[str | int, ...]


class AnyKind(Mapping[str, None]):
    """Every kind there may be, its fields unchecked."""

    def __contains__(self, kind: object) -> bool:
        return True

    def __getitem__(self, kind: str) -> None:
        return None

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


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
_OUTSIDE = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*", re.ASCII)
_RENAMED = {
    "name": "step",
    "id": "step",
    "condition": "when",
    "if": "when",
}  # keys of other tools, and the same key of ours
_LOOP_HINT = "write `loop: {in: …, iterator: item}`"
_BEFORE_HINT = "write `next` in the step that runs before: `next: [this_step]`"
_WHEN_HINT = "write the condition in the arc that leads here, `next: [{step: …, when: …}]`, or `spec: {policy: {admit: …}}`"
_OTHERWISE = {  # keys of other tools on a step that are no key with the same value here, and what to write
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


def parse(document: Map, editor: Editor, kinds: Kinds) -> Playbook | None:
    """The model of a document whose short and old forms are spelled out; None when findings say why not."""
    _outside_kinds(document, editor, kinds)
    try:
        return Playbook.model_validate(plain(document))
    except ValidationError as exc:
        _report(document, exc.errors(include_url=False), editor)
        return None


def suggestion(name: str, known: Iterable[str]) -> str | None:
    close = get_close_matches(name, list(known), n=1, cutoff=0.6)
    return close[0] if close else None


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    close = suggestion(name, known)
    return f"did you mean `{close}`?" if close else None


def _report(document: Map, errors: list[ErrorDetails], editor: Editor) -> None:
    """One finding per place; the alternatives of a union are one place."""
    by_place: dict[Path, list[ErrorDetails]] = {}
    for error in errors:
        by_place.setdefault(_path(document, error["loc"], error["type"]), []).append(error)
    for path, group in by_place.items():
        if any(other[: len(path)] == path != other for other in by_place) and len(
            group[0]["loc"]
        ) > len(path):
            continue  # another alternative of the union got further
        editor.step = _step_at(document, path)
        code, message, hint = _explain(document, path, _most_telling(group), group)
        parent, key = _parent(document, path, missing=group[0]["type"] == "missing")
        editor.report(parent, key, code, message, hint, "error")
    editor.step = None


def _most_telling(group: list[ErrorDetails]) -> ErrorDetails:
    for wanted in ("value_error", "extra_forbidden", "missing"):
        for error in group:
            if error["type"] == wanted:
                return error
    return group[-1] if group[-1]["type"] in _BOUNDS else group[0]


def _path(document: Any, loc: tuple[int | str, ...], kind: str) -> Path:
    """The location without the names of union alternatives, which are no part of the document."""
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


def _parent(document: Any, path: Path, missing: bool) -> tuple[Any, str | int | None]:
    node = document
    for part in path[:-1]:
        node = node[part]
    if not path or (missing and isinstance(node, dict)):
        return _holder(document, path[:-1])
    return node, path[-1]


def _holder(document: Any, path: Path) -> tuple[Any, str | int | None]:
    """A missing field is reported where its mapping is named: at the key, or at the first key of a list item."""
    if not path:
        return document, None
    node = document
    for part in path[:-1]:
        node = node[part]
    return node, path[-1]


def _step_at(document: Any, path: Path) -> str | None:
    if len(path) < 2 or path[0] != "workflow" or not isinstance(path[1], int):
        return None
    step = document["workflow"][path[1]]
    name = step.get("step") if isinstance(step, dict) else None
    return name if isinstance(name, str) else None


def _explain(
    document: Any, path: Path, error: ErrorDetails, group: list[ErrorDetails]
) -> tuple[Code, str, str | None]:
    kind, context = error["type"], error.get("ctx", {})
    name = next((part for part in reversed(path) if isinstance(part, str)), "the playbook")
    where = f"`{name}`" if path else name
    if kind == "extra_forbidden":
        return _unknown_key(document, path)
    if kind == "missing":
        return (
            Code.MISSING_FIELD,
            f"{where} is missing{_of(document, path)}",
            _needed(document, path),
        )
    if kind == "value_error":
        message = str(context.get("error", error["msg"])).removeprefix("Value error, ")
        return (
            (
                Code.BAD_DURATION
                if "duration" in message and "wait takes" not in message
                else Code.BAD_VALUE
            ),
            message,
            None,
        )
    if kind == "literal_error":
        return _not_one_of(where, error)
    if kind in ("string_pattern_mismatch", "string_too_long"):
        hint = "letters, digits, `_` and `-`, at most 128; a letter or `_` first"
        return Code.BAD_NAME, f"{error['input']!r} is not a name{_of(document, path)}", hint
    if kind in _BOUNDS:
        bound, words = _BOUNDS[kind]
        return (
            Code.BAD_VALUE,
            f"{where} must be {words} {context[bound]}, not {error['input']}",
            None,
        )
    if kind == "too_short":
        return Code.BAD_VALUE, f"{where} must not be empty", None
    if kind in _TYPES:
        wanted = list(
            dict.fromkeys(_TYPES[item["type"]] for item in group if item["type"] in _TYPES)
        )
        if path[-1:] == ("tool",):
            wanted = ["a task (a mapping with `kind`)", "a list of tasks"]
        if path[-3:-1] == ("next", "arcs"):
            hint = "`next: done`, or `next: [{step: done, when: …}]`"
            return Code.BAD_TYPE, f"`next` must name a step, not {_shown(error['input'])}", hint
        return (
            Code.BAD_TYPE,
            f"{where} must be {' or '.join(wanted)}, not {_shown(error['input'])}",
            None,
        )
    return Code.BAD_VALUE, f"{where}: {error['msg']}", None


def _not_one_of(where: str, error: ErrorDetails) -> tuple[Code, str, str | None]:
    expected = str(error.get("ctx", {}).get("expected", ""))
    given = error["input"]
    choices = [part.strip("'") for part in expected.replace(" or ", ", ").split(", ")]
    hint = did_you_mean(given, choices) if isinstance(given, str) else None
    return (
        Code.BAD_VALUE,
        f"{where} must be {expected}, not {_shown(given)}",
        hint or _CHOICES.get(where),
    )


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    return "nothing" if value is None else repr(value)[:60]


def _needed(document: Any, path: Path) -> str | None:
    name, node = str(path[-1]), document
    for part in path[:-1]:
        node = node[part]
    written = suggestion(name, [key for key in _keys(node) if key not in Task.model_fields])
    if written is not None:
        return f"did you mean `{name}:` where it says `{written}:`?"
    return {
        "metadata": "every playbook has `metadata: {name: …}`",
        "workflow": "every playbook has `workflow:`, a list of steps",
        "step": "a step begins with `- step: name`; an arc names its target with `step:`",
        "kind": "name the tool, for example `kind: python`",
    }.get(name)


def _keys(node: Any) -> Iterator[str]:
    """As they were written: those of a task without a kind stand under `options`, those of a labelled one a level deeper."""
    for key, value in node.items() if isinstance(node, dict) else ():
        if key == "options" and isinstance(value, dict):
            yield from value
            yield from (
                name for inner in value.values() if isinstance(inner, dict) for name in inner
            )
        else:
            yield key


def _of(document: Any, path: Path) -> str:
    node = document
    for part in path[:-1]:
        node = node[part]
    kind = node.get("kind") if isinstance(node, dict) else None
    return (
        f" in {kind}" if isinstance(kind, str) and len(path) > 1 and "metadata" not in path else ""
    )


def _unknown_key(document: Any, path: Path) -> tuple[Code, str, str | None]:
    key = str(path[-1])
    message = f"unknown key `{key}`{_of(document, path)}"
    known = _fields_at(document, path[:-1])
    free = [name for name in known if name not in _written_keys(_node_at(document, path[:-1]))]
    renamed = _RENAMED.get(key)
    if renamed in free:
        return Code.UNKNOWN_KEY, message, f"did you mean `{renamed}`?"
    if key in _OTHERWISE and _is_step(path[:-1]):
        return Code.UNKNOWN_KEY, message, _OTHERWISE[key]
    hint = did_you_mean(key, free) or (f"known here: {', '.join(sorted(known))}" if known else None)
    return Code.UNKNOWN_KEY, message, hint


def _is_step(path: Path) -> bool:
    return len(path) == 2 and path[0] == "workflow"


def _node_at(document: Any, path: Path) -> Any:
    node = document
    for part in path:
        node = node[part]
    return node


def _written_keys(node: Any) -> frozenset[str]:
    """Keys that the author wrote, by their old and new names. A key that a short form stands for does not count: it has the
    place of the key that caused it, which is still there."""
    if not isinstance(node, Map):
        return frozenset()
    first_by_place: dict[Mark, str] = {}
    for key, (place, _) in node.marks.items():
        first_by_place.setdefault(place, key)
    firsts = frozenset(first_by_place.values())
    renamed = {key for key, (place, _) in node.marks.items() if first_by_place[place] not in node}
    return firsts | renamed


def _fields_at(document: Any, path: Path) -> list[str]:
    """The keys the model has at a path of the document."""
    models: list[type[Model]] = [Playbook]
    node: Any = document
    for part in path:
        node = node[part]
        if isinstance(part, str):
            found = [_field(model, part) for model in models]
            models = [inner for annotation in found for inner in _models_in(annotation)]
        if isinstance(node, dict) and any(issubclass(model, Task) for model in models):
            models = [BUILT_IN.get(str(node.get("kind")), OutsideTask)]
    return list(
        dict.fromkeys(
            field.alias or name for model in models for name, field in model.model_fields.items()
        )
    )


def _field(model: type[Model], key: str) -> Any:
    for name, field in model.model_fields.items():
        if key in (name, field.alias):
            return field.annotation
    return None


def _models_in(annotation: Any) -> list[type[Model]]:
    if isinstance(annotation, type) and get_origin(annotation) is None:
        return [annotation] if issubclass(annotation, Model) else []
    if get_origin(annotation) in (Union, types.UnionType, list) or hasattr(
        annotation, "__metadata__"
    ):
        parts = (
            get_args(annotation)[:1]
            if hasattr(annotation, "__metadata__")
            else get_args(annotation)
        )
        return [model for part in parts for model in _models_in(part)]
    return []


def _outside_kinds(document: Map, editor: Editor, kinds: Kinds) -> None:
    """Kinds must be known; the options of one that comes by entry point are checked by its own model."""
    for step, task in every_task(document):
        kind = task.get("kind")
        if not isinstance(kind, str) or kind in BUILT_IN:
            continue
        editor.step = step
        if kind not in kinds:
            _unknown_kind(task, kind, [*BUILT_IN, *kinds], editor)
        elif (model := kinds[kind]) is not None:
            _own_model(task, model, editor)
    editor.step = None


def _unknown_kind(task: Any, kind: str, known: list[str], editor: Editor) -> None:
    """What resembles a known kind is a slip. Another name may come with a package that is installed where workers run."""
    place = Seq(editor.value_mark(task, "kind"))
    meant = did_you_mean(kind, known)
    names = f"known kinds: {', '.join(sorted(known))}"
    if meant or not _OUTSIDE.fullmatch(kind):
        editor.fault(place, None, Code.UNKNOWN_KIND, f"unknown kind `{kind}`", meant or names)
    else:
        hint = f"install the package that brings it, here and where workers run; {names}"
        editor.report(place, None, Code.UNKNOWN_KIND, f"no tool `{kind}` here", hint, "warning")


def _own_model(task: Any, model: type[BaseModel], editor: Editor) -> None:
    options = task.get("options", {})
    try:
        model.model_validate(plain(options))
    except ValidationError as exc:
        for error in exc.errors(include_url=False):
            key = next((part for part in error["loc"] if isinstance(part, str)), None)
            code = {"extra_forbidden": Code.UNKNOWN_KEY, "missing": Code.MISSING_FIELD}.get(
                error["type"], Code.BAD_VALUE
            )
            place = (options, key) if key in options else (task, "kind")
            editor.report(*place, code, f"`{key}` of {task['kind']}: {error['msg']}", None, "error")


def every_task(document: Any) -> Iterable[tuple[str | None, Any]]:
    """(step, task) of every task in the document; the step is None for the workbook."""
    for step in (
        document.get("workflow") or [] if isinstance(document.get("workflow"), list) else []
    ):
        if isinstance(step, dict) and isinstance(step.get("tool"), list):
            name = step.get("step") if isinstance(step.get("step"), str) else None
            yield from ((name, task) for task in step["tool"] if isinstance(task, dict))
    for entry in (
        document.get("workbook") or [] if isinstance(document.get("workbook"), list) else []
    ):
        if isinstance(entry, dict) and isinstance(entry.get("tool"), dict):
            yield None, entry["tool"]

"""The JSON Schema of playbooks, made from the model, for completion and checks in editors.

It describes the current spelling with its short forms (`next: done`, one task without a list). It
does not cover what only `noetl validate` can check: names, templates and older spellings.
"""

from typing import Any

from noetl.playbook.dialect.shorthand import NAME_FIELDS
from noetl.playbook.model import BUILT_IN_TASKS, Playbook

SCHEMA_ID = "https://noetl.io/schema/playbook-v2.json"


def build_schema() -> dict[str, Any]:
    playbook_schema = Playbook.model_json_schema(by_alias=True)
    definitions: dict[str, Any] = playbook_schema["$defs"]
    task_names: list[str] = []
    for kind, model in BUILT_IN_TASKS.items():
        _require_kind(definitions.get(model.__name__), kind)
        task_names.append(model.__name__)
    _describe_outside_task(definitions["OutsideTask"])
    task_names.append("OutsideTask")
    definitions["Task"] = {"anyOf": [{"$ref": f"#/$defs/{name}"} for name in task_names]}
    definitions["LabelledTask"] = {
        "type": "object",
        "minProperties": 1,
        "maxProperties": 1,
        "additionalProperties": {"$ref": "#/$defs/Task"},
    }
    _add_short_forms(definitions)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_ID,
        **playbook_schema,
        "title": "NoETL playbook",
    }


def _require_kind(definition: dict[str, Any] | None, kind: str) -> None:
    """Require `kind` and make `name` optional. Some kinds spell another field `name`."""
    if definition is None:
        return
    properties, required = definition["properties"], set(definition.get("required", ()))
    properties["kind"] = {"const": kind}
    field = NAME_FIELDS.get(kind)
    definition["required"] = sorted(required - {"name", field} | {"kind"})
    if field is not None:
        definition["anyOf"] = [{"required": [field]}, {"required": ["name"]}]


def _describe_outside_task(definition: dict[str, Any]) -> None:
    definition["properties"]["kind"] = {"type": "string", "not": {"enum": list(BUILT_IN_TASKS)}}
    definition["required"] = ["kind"]
    definition["additionalProperties"] = True


def _add_short_forms(definitions: dict[str, Any]) -> None:
    task = {"$ref": "#/$defs/Task"}
    step = definitions["Step"]["properties"]
    items = {"anyOf": [task, {"$ref": "#/$defs/LabelledTask"}]}
    step["tool"] = {
        "anyOf": [task, {"type": "array", "items": items}],
        "description": "one task, or named tasks in order",
    }
    arcs = {"type": "array", "items": {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/Arc"}]}}
    definitions["Router"]["properties"]["arcs"] = arcs
    modes = {"enum": ["exclusive", "inclusive", "all"], "default": "exclusive"}
    definitions["RouterSpec"]["properties"]["mode"] = modes
    routers = [
        {"type": "string"},
        arcs,
        {"$ref": "#/$defs/Arc"},
        {"$ref": "#/$defs/Router"},
        {"type": "null"},
    ]
    step["next"] = {"anyOf": routers, "description": "where the branch goes on; missing ends it"}
    definitions["WorkbookTask"]["properties"]["tool"] = task
    for rule, action in (("Rule", "Action"), ("AdmitRule", "AdmitAction")):
        _add_else(definitions[rule], action)
    rules = {"type": "array", "items": {"$ref": "#/$defs/AdmitRule"}}
    policy = definitions["StepPolicy"]["properties"]
    policy["admit"] = {"anyOf": [rules, {"$ref": "#/$defs/Admit"}, {"type": "null"}]}
    definitions["Admit"]["properties"]["else"] = definitions["AdmitRule"]["properties"]["else"]
    _allow_single(definitions["Target"]["properties"], "key")
    _allow_single(definitions["ShellTask"]["properties"], "cmds")
    frame = definitions["LoopSpec"]["properties"]
    frame["frame"] = {"anyOf": [{"type": "integer"}, {"$ref": "#/$defs/Frame"}, {"type": "null"}]}


def _add_else(rule: dict[str, Any], action: str) -> None:
    then = {"$ref": f"#/$defs/{action}"}
    wrapped = {
        "type": "object",
        "properties": {"then": then},
        "required": ["then"],
        "additionalProperties": False,
    }
    rule["properties"]["else"] = {"anyOf": [then, wrapped]}


def _allow_single(properties: dict[str, Any], name: str) -> None:
    properties[name] = {"anyOf": [{"type": "string"}, properties[name]]}

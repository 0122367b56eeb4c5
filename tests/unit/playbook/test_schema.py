"""The JSON Schema describes the current spelling, and every reference in it resolves."""

import json
from typing import Any

import typer
from typer.testing import CliRunner

from noetl.cli import playbooks
from noetl.playbook.model import BUILT_IN_TASKS
from noetl.playbook.schema import build_schema


def references(node: Any) -> set[str]:
    if isinstance(node, dict):
        own = {node["$ref"]} if isinstance(node.get("$ref"), str) else set()
        return own.union(*(references(value) for value in node.values()))
    if isinstance(node, list):
        return set().union(*(references(value) for value in node))
    return set()


def test_every_reference_resolves() -> None:
    made = build_schema()
    assert {name.removeprefix("#/$defs/") for name in references(made)} <= made["$defs"].keys()


def test_unknown_keys_are_refused_in_every_block_of_the_language() -> None:
    definitions = build_schema()["$defs"]
    for name in ("Step", "Loop", "Arc", "Router", "HttpTask", "Metadata", "KeychainEntry"):
        assert definitions[name]["additionalProperties"] is False


def test_every_kind_must_name_itself() -> None:
    definitions = build_schema()["$defs"]
    for kind, model in BUILT_IN_TASKS.items():
        definition = definitions[model.__name__]
        assert definition["properties"]["kind"] == {"const": kind}
        assert "kind" in definition["required"]
        assert "name" not in definition["required"]


def test_short_forms_are_in_it() -> None:
    step = build_schema()["$defs"]["Step"]["properties"]
    assert {"type": "string"} in step["next"]["anyOf"]
    assert {"$ref": "#/$defs/Task"} in step["tool"]["anyOf"]
    assert "in" in build_schema()["$defs"]["Loop"]["properties"]


def test_command_prints_it() -> None:
    app = typer.Typer()
    playbooks.register(app)
    assert json.loads(CliRunner().invoke(app, ["schema"]).stdout) == build_schema()

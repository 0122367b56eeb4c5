"""Writes the page on the template language: its operators, statements, filters, tests, methods and functions.

`template_functions.toml` says what each of them does, with an example. The examples are evaluated when the page is written. A
function without a description, and a description of a function that does not exist, fail a unit test.
"""

import json
import tomllib
from collections.abc import Iterator, Mapping
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

from noetl.template.functions.filters import FILTERS
from noetl.template.functions.globals import GLOBALS
from noetl.template.functions.methods import METHODS
from noetl.template.functions.tests import TESTS
from noetl.template.limits import SERVER_LIMITS, WORKER_LIMITS
from noetl.template.rendering import Renderer
from noetl.template.replay_functions import DerivedFunctions

DESCRIPTIONS = Path(__file__).parent / "template_functions.toml"
Table = Mapping[str, Any]
_EXAMPLE_FUNCTIONS = DerivedFunctions("docs", "2026-01-02T03:04:05.678901Z")
_ABOUT = """\
A template is text with `{{ expressions }}` and, in longer text, statements. It uses Jinja's syntax, and NoETL evaluates it itself
([why](decisions/0002-our-own-template-evaluator.md)). Where templates stand and which names they see is in
[the playbook language](playbook.md#templates).

Values are those of JSON: null (`none`), true and false, numbers, text, lists and maps. There are no Python objects, so a template
can call nothing but what this page lists. `noetl validate` names a function that does not exist.
"""
_EXPRESSIONS = """\
## Expressions

| form | for example |
|---|---|
| constants | `none` (null in JSON), `true`, `false`, `42`, `1.5`, `'text'`, `[1, 2]`, `{'a': 1}` |
| names and members | `workload.limit`, `load.rows[0].id`, `row['first name']`, `rows[1:3]`, `rows[-1]` |
| arithmetic | `+`, `-`, `*`, `/`, `//` (whole), `%`, `**`; `~` joins texts |
| comparison | `==`, `!=`, `<`, `<=`, `>`, `>=`, `in`, `not in`, `is`, `is not` |
| logic | `and`, `or`, `not`, `a if condition else b` |
| filters | `rows \\| length`, `names \\| map('upper') \\| join(', ')` |
| calls | `now()`, `name.upper()` |

## Statements

| statement | |
|---|---|
| `{% if x %} … {% elif y %} … {% else %} … {% endif %}` | one of several texts |
| `{% for item in items %} … {% else %} … {% endfor %}` | a text for each item; `loop.index` counts from 1. `else`: no items |
| `{% set name = value %}` | a name for the rest of the text |
| `{# … #}` | a comment |

There are no macros, imports, blocks or other statements of Jinja.
"""


def read_descriptions() -> dict[str, dict[str, tuple[str, str]]]:
    descriptions: dict[str, dict[str, tuple[str, str]]] = tomllib.loads(
        DESCRIPTIONS.read_text(encoding="utf-8")
    )
    return descriptions


def list_functions() -> dict[str, Table]:
    """All that a template can call, by the groups of the descriptions."""
    return {
        "filters": FILTERS,
        "tests": TESTS,
        "text_methods": METHODS[str],
        "map_methods": METHODS[dict],
        "list_methods": METHODS[list],
        "functions": GLOBALS,
    }


def write_page(mark: str) -> str:
    lines = ["# The template language", "", mark, "", _ABOUT, _EXPRESSIONS]
    lines += [
        "## Filters",
        "",
        "`{{ value | name(arguments) }}`. Arguments have names: `sort(reverse=true)`.",
        "",
    ]
    lines += _write_table("filters")
    lines += [
        "## Tests",
        "",
        "`{{ value is name argument }}`, and the name of a test in `select`, `reject`, `selectattr` and `rejectattr`.",
        "",
    ]
    lines += _write_table("tests")
    lines += ["## Methods of values", "", "Text:", "", *_write_table("text_methods")]
    lines += [
        "Maps:",
        "",
        *_write_table("map_methods"),
        "Lists:",
        "",
        *_write_table("list_methods"),
    ]
    lines += [
        "## Functions",
        "",
        "On the server, `now()`, `uuid()` and `random()` follow from the event that is handled, so a replay gives the same.",
        "",
    ]
    lines += _write_table("functions")
    lines += _write_limits()
    return "\n".join(lines).rstrip() + "\n"


def _write_table(group: str) -> Iterator[str]:
    functions = list_functions()[group]
    renderer = Renderer(functions=_EXAMPLE_FUNCTIONS)
    yield from ("| name | does | example | gives |", "|---|---|---|---|")
    for name, (does, example) in read_descriptions()[group].items():
        value = renderer.render("{{ " + example + " }}", {})
        result = json.dumps(value, ensure_ascii=False)
        shown = f"`{name}{_format_arguments(functions[name], group)}`"
        yield f"| {_cell(shown)} | {_cell(does)} | {_cell(f'`{example}`')} | {_cell(f'`{result}`')} |"
    yield ""


def _format_arguments(function: Any, group: str) -> str:
    """The arguments in parentheses. The first ones are the meter and the value itself."""
    own = list(signature(function).parameters.values())[1 if group == "functions" else 2 :]
    texts = [_format_argument(parameter) for parameter in own]
    if texts or group in ("functions", "text_methods", "map_methods", "list_methods"):
        return f"({', '.join(texts)})"
    return ""


def _format_argument(parameter: Parameter) -> str:
    if parameter.kind is Parameter.VAR_POSITIONAL:
        return f"*{parameter.name}"
    if parameter.kind is Parameter.VAR_KEYWORD:
        return f"**{parameter.name}"
    default = parameter.default
    if default is Parameter.empty or type(default) not in (str, int, float, bool, type(None)):
        return parameter.name
    shown = "none" if default is None else json.dumps(default)
    return f"{parameter.name}={shown}"


_ABOUT_LARGE_TEMPLATES = (
    "One operation on a long text or list, such as `sort` or `replace`, may take 200,000 operations. A template has at most "
    "10,000 words and signs inside its braces. A worker renders what takes more than 5,000 operations in a thread, so "
    "its heartbeats, timeouts and signals never wait for a template. Lists of 100,000 rows are fine; for more, use a step."
)


def _write_limits() -> Iterator[str]:
    yield from ("## Limits", "")
    yield (
        "Work is bounded by counting, never by time, so that a slow machine gives the same answer. "
        "More fails with `TEMPLATE_LIMIT`. An operation is at most half a microsecond of work: a node of the "
        "expression, an item that a filter looks at, or 128 characters that are read or made."
    )
    yield from ("", "| one rendering may | on the server | on a worker |", "|---|---|---|")
    for name, what in (
        ("operations", "take so many operations"),
        ("memory", "make so many bytes of texts and lists"),
        ("text", "make a text of so many characters"),
        ("items", "make a list of so many items"),
        ("depth", "nest values so deep"),
        ("bits", "compute integers of so many bits"),
    ):
        yield f"| {what} | {getattr(SERVER_LIMITS, name):,} | {getattr(WORKER_LIMITS, name):,} |"
    yield from ("", _ABOUT_LARGE_TEMPLATES)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")

"""Inputs that are had without rendering are what rendering would have given."""

from typing import Any

import pytest

from noetl.pipeline.loop.direct_inputs import DirectInputs
from noetl.pipeline.scope.names import LoopItem
from noetl.template.errors import TemplateError
from noetl.template.parsing import parse_texts
from tests.rendering import render_value

INPUT = {
    "whole": "{{ row }}", "part": "{{ row.id }}", "deep": "{{row.at.x}}", "at": " {{ iter.index }} ", "nth": "{{ loop.index }}",
    "under": "{{ _index }}", "old": "{{ loop_index }}",
    "fixed": "{{ workload.list }}", "name": "{{ add }}", "text": "as it is", "number": 3, "nothing": None,
}  # fmt: skip
SCOPE = {"workload": {"list": [1, 2]}, "add": 10}


def render_item(template: dict[str, Any], item: LoopItem) -> Any:
    return render_value(template, {**SCOPE, **item.make_names({})})


@pytest.mark.parametrize(
    ("names", "values", "ready"),
    [
        (["whole", "at"], [1, "x", None, True, 1.5, {"id": 1, "k": "x"}, {}], True),
        (
            ["part", "fixed", "name"],
            [{"id": 2}, {"id": None}, {"id": {"x": 1}}, {"id": "{{ row }}"}],
            True,
        ),
        (["deep", "nth", "under", "old"], [{"at": {"x": 1}}], True),
        (["text", "number", "nothing"], [{"at": {"x": 1}}], True),
        (
            ["part"],
            [{"id": [1]}, {"id": (1, 2)}, {"id": {"x": [1]}}, {}, 7, None, [{"id": 1}]],
            False,
        ),
        (["deep"], [{"at": 1}, {"at": {}}, {"at": None}], False),
        (["whole"], [[1], {"id": {"x": 1}}, {"id": (1, 2)}], False),
    ],
)
def test_it_is_what_rendering_gives_or_left_to_it(
    names: list[str], values: list[Any], ready: bool
) -> None:
    template = parse_texts({name: INPUT[name] for name in names})
    direct = DirectInputs.from_template(template, "row")
    assert direct is not None
    first = LoopItem(0, {"id": 0, "at": {"x": 0}}, "row", None)
    assert direct.make_inputs([first]) == [None]
    direct.set_rendered(render_item(template, first))
    for index, value in enumerate(values, start=1):
        item = LoopItem(index, value, "row", 9)
        (made,) = direct.make_inputs([item])
        assert (made is not None) is ready
        assert made is None or list(made.items()) == list(render_item(template, item).items())


@pytest.mark.parametrize(
    ("template", "iterator"),
    [
        ({"n": "{{ row.id + 1 }}"}, "row"),
        ({"n": "no. {{ row.id }}"}, "row"),
        ({"n": "{{ row['id'] }}"}, "row"),
        ({"n": "{{ uuid() }}"}, "row"),
        ({"n": "{{ workload.list | length }}"}, "row"),
        ({"n": ["{{ row }}"]}, "row"),
        ({"n": {"a": 1}}, "row"),
        ({"{{ row }}": 1}, "row"),
        ({"n": "{{ input.n }}"}, "row"),
        ({"n": "{{ args }}"}, "row"),
        ({"n": "{{ iter.row }}"}, "row"),
        ({"n": "{{ loop.first }}"}, "row"),
        ({"n": "{{ loop }}"}, "loop"),
        ({"n": "{{ iter.index }}"}, "index"),
    ],
)
def test_anything_else_is_rendered(template: dict[str, Any], iterator: str) -> None:
    assert DirectInputs.from_template(parse_texts(template), iterator) is None


def test_a_name_that_nobody_knows_is_told_of_every_item() -> None:
    template = parse_texts({"n": "{{ nobody }}"})
    direct = DirectInputs.from_template(template, "row")
    assert direct is not None
    assert direct.make_inputs([LoopItem(0, 1, "row", 2)]) == [None]
    with pytest.raises(TemplateError):
        render_item(template, LoopItem(0, 1, "row", 2))

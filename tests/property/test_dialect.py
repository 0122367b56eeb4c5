"""A playbook in the current spelling and the same one in older spellings are one model."""

import copy
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from noetl.playbook import text
from noetl.playbook.convert import convert
from noetl.playbook.validation import load
from tests.examples import count_examples

Node = dict[str, Any]

NAMES = st.sampled_from(["alpha", "beta", "gamma", "delta", "load_it", "x1"])
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-99, 99), st.text("abc é'\"#:-{}[]!&*|>%@", max_size=12)
)
VALUES = st.recursive(
    SCALARS.filter(lambda value: not (isinstance(value, str) and "{" in value)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=5,
)
MAPS = st.dictionaries(NAMES, VALUES, min_size=1, max_size=3)
GUARDS = st.sampled_from(
    ["{{ workload.n > 3 }}", "{{ ctx.a is defined }}", "{{ output.status == 'error' }}"]
)
ACTIONS = st.fixed_dictionaries(
    {"do": st.just("retry"), "attempts": st.integers(1, 9)},
    optional={
        "delay": st.sampled_from(["1s", 5, "100ms"]),
        "max_delay": st.just("1m"),
        "jitter": st.booleans(),
    },
)


@st.composite
def tasks(draw: st.DrawFn) -> Node:
    kind = draw(st.sampled_from(["http", "postgres", "shell", "python", "noop"]))
    task: Node = {"kind": kind}
    match kind:
        case "http":
            task |= {"url": "http://localhost/x", "method": "POST", "body": draw(MAPS)}
        case "postgres":
            task |= {"query": "select 1", "auth": "pg"}
        case "shell":
            task |= {
                "cmds": draw(st.lists(st.sampled_from(["ls", "date"]), min_size=1, max_size=2))
            }
        case "python":
            task |= {"code": "result = 1"}
        case _:
            pass
    if draw(st.booleans()):
        task["input"] = draw(MAPS)
    return task


@st.composite
def sinks(draw: st.DrawFn) -> Node:
    target: Node = {"kind": "postgres", "auth": "pg", "table": draw(NAMES)}
    if draw(st.booleans()):
        target |= {"mode": "upsert", "key": ["id"]}
    return {"target": target, "data": draw(MAPS)}


@st.composite
def steps(draw: st.DrawFn, name: str, others: list[str]) -> Node:
    step: Node = {"step": name, "tool": {"name": "task_0", **draw(tasks())}}
    if draw(st.booleans()):
        step["loop"] = {"in": draw(st.lists(VALUES, max_size=3)), "iterator": "row"}
        step["loop"]["spec"] = {"mode": draw(st.sampled_from(["parallel", "sequential"]))}
    if draw(st.booleans()):
        step["set"] = {f"ctx.{key}": value for key, value in draw(MAPS).items()}
    arcs: list[Node] = [
        {"step": target, "when": draw(GUARDS)}
        | ({"args": draw(MAPS)} if draw(st.booleans()) else {})
        for target in draw(st.lists(st.sampled_from(others), max_size=2))
    ]
    step["next"] = {"arcs": [*arcs, {"step": draw(st.sampled_from(others))}]}
    if draw(st.booleans()):
        step["next"]["spec"] = {"mode": "inclusive"}
    if draw(st.booleans()):
        rule = {"when": "{{ output.status == 'error' }}", "then": draw(ACTIONS)}
        step["tool"]["spec"] = {"policy": {"rules": [rule]}}
    if draw(st.booleans()):
        step["tool"] = [step["tool"], {"name": "sink", "kind": "sink", **draw(sinks())}]
    return step


@st.composite
def playbooks(draw: st.DrawFn) -> Node:
    names = draw(st.lists(NAMES, min_size=1, max_size=4, unique=True))
    return {
        "apiVersion": "noetl.io/v2",
        "metadata": {"name": "generated"},
        "workload": {"n": 1},
        "workflow": [draw(steps(name, names)) for name in names],
    }


OLD_FIELDS = {
    "http": {"url": ["endpoint"], "body": ["json", "payload", "data"]},
    "postgres": {"query": ["command", "sql", "commands"]},
    "shell": {"cmds": ["cmd", "command"]},
}


@st.composite
def older(draw: st.DrawFn, playbook: Node) -> Node:
    """The same playbook with some things spelled as they used to be."""
    made = copy.deepcopy(playbook)
    made["apiVersion"] = draw(st.sampled_from(["noetl.io/v10", "noetl.io/v2", "v10"]))
    for step in made["workflow"]:
        for change in (_sink, _retry, _fields, _label, _loop, _vars, _respell_next):
            if draw(st.booleans()):
                change(step, draw)
    if draw(st.booleans()):
        made["steps"] = made.pop("workflow")
    return made


def _sink(step: Node, draw: st.DrawFn) -> None:
    if isinstance(step["tool"], list):
        step["tool"], task = step["tool"]
        step["sink"] = {"tool": task["target"], "data": task["data"]}


def _retry(step: Node, draw: st.DrawFn) -> None:
    tool = step["tool"]
    if isinstance(tool, dict) and "spec" in tool and "sink" not in step:
        (rule,) = tool.pop("spec")["policy"]["rules"]
        then = {key: value for key, value in rule["then"].items() if key != "do"}
        then["max_attempts"] = then.pop("attempts")
        if "delay" in then:
            then["initial_delay"] = then.pop("delay")
        step["retry"] = (
            then["max_attempts"]
            if len(then) == 1
            else draw(st.sampled_from([then, [{"then": then}]]))
        )


def _fields(step: Node, draw: st.DrawFn) -> None:
    tool = step["tool"][0] if isinstance(step["tool"], list) else step["tool"]
    for new, olds in OLD_FIELDS.get(tool["kind"], {}).items():
        tool[draw(st.sampled_from(olds))] = tool.pop(new)
    if "input" in tool:
        tool["args"] = tool.pop("input")


def _label(step: Node, draw: st.DrawFn) -> None:
    tool = step["tool"]
    listed = tool if isinstance(tool, list) else [tool]
    step["tool"] = [
        {task["name"]: {key: value for key, value in task.items() if key != "name"}}
        for task in listed
    ]


def _loop(step: Node, draw: st.DrawFn) -> None:
    if "loop" in step:
        step["loop"]["mode"] = step["loop"].pop("spec")["mode"]
        step["loop"]["collection"] = step["loop"].pop("in")


def _vars(step: Node, draw: st.DrawFn) -> None:
    if "set" in step:
        step["vars"] = {key.removeprefix("ctx."): value for key, value in step.pop("set").items()}


def _respell_next(step: Node, draw: st.DrawFn) -> None:
    router = step["next"]
    if "spec" in router:
        router["mode"] = draw(st.sampled_from(["inclusive", "all"]))
        del router["spec"]
        return
    arcs = [arc["step"] if set(arc) == {"step"} else arc for arc in router["arcs"]]
    step["next"] = arcs[0] if len(arcs) == 1 else arcs


@settings(max_examples=count_examples(40), deadline=None)
@given(st.data())
def test_older_spellings_are_the_same_playbook(data: st.DataObject) -> None:
    current = data.draw(playbooks())
    old = data.draw(older(current))
    expected = load(json.dumps(current, ensure_ascii=False))
    found = load(json.dumps(old, ensure_ascii=False))
    assert expected.playbook is not None, [str(finding) for finding in expected.errors]
    assert found.playbook == expected.playbook, [str(finding) for finding in found.errors]
    assert not any(finding.severity == "note" for finding in expected.findings)


@settings(max_examples=count_examples(20), deadline=None)
@given(st.data())
def test_conversion_changes_the_spelling_only(data: st.DataObject) -> None:
    old = json.dumps(data.draw(older(data.draw(playbooks()))), ensure_ascii=False, indent=1)
    converted = convert(old).text
    assert not any(finding.severity == "note" for finding in load(converted).findings)
    assert load(converted).playbook == load(old).playbook


KEYS = st.sampled_from(
    "step tool kind next arcs when then else loop in iterator mode spec policy rules admit set vars case retry sink save"
    " type with args pass input name metadata workflow steps workbook keychain workload executor tasks task cursor".split()
)
ANYTHING = st.recursive(
    SCALARS
    | st.sampled_from(
        ["http", "noop", "{{ x }}", "{{ event.name == 'call.error' }}", "iterator", "cursor"]
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=count_examples(80), deadline=None)
@given(
    st.fixed_dictionaries(
        {"workflow": st.lists(st.dictionaries(KEYS, ANYTHING, max_size=5), max_size=3)}
    ),
    ANYTHING,
)
def test_nothing_a_text_may_hold_breaks_validation(document: Node, extra: Any) -> None:
    found = load(
        json.dumps({**document, "workbook": extra, "keychain": [extra]}, ensure_ascii=False)
    )
    assert found.playbook is None or not found.errors


@settings(max_examples=count_examples(80), deadline=None)
@given(st.text(max_size=200) | st.binary(max_size=200))
def test_any_text_or_bytes_are_read_or_refused(source: str | bytes) -> None:
    document = text.read_document(source)
    assert document.problems or document.lines

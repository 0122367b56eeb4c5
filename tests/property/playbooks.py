"""Strategies: playbooks of every shape that the engine routes, small enough to shrink well."""

from typing import Any

from hypothesis import strategies as st

NAMES = ["s0", "s1", "s2", "s3", "s4", "s5"]


@st.composite
def guards(draw: st.DrawFn, earlier: list[str]) -> Any:
    source = draw(st.sampled_from(earlier))
    return draw(
        st.sampled_from(
            [
                None,
                True,
                False,
                "{{ output.status == 'ok' }}",
                "{{ error is defined }}",
                "{{ event.name == 'call.error' }}",
                f"{{{{ {source}.n | default(0) > 2 }}}}",
                "{{ ctx.n | default(0) < 3 }}",
                f"{{{{ {source}.list[ctx.n | default(0)] | default(true) }}}}",
                "{{ workload.flag }}",
            ]
        )
    )


@st.composite
def routers(draw: st.DrawFn, own: str, names: list[str]) -> Any:
    arcs = []
    for target in draw(st.lists(st.sampled_from(names), max_size=3)):
        arc: dict[str, Any] = {"step": target}
        guard = draw(guards([own]))
        if guard is not None:
            arc["when"] = guard
        if draw(st.booleans()):
            arc["args"] = {"k": draw(st.sampled_from([1, f"{{{{ {own}.n | default(1) }}}}"]))}
        if draw(st.integers(0, 4)) == 0:
            arc["set"] = {"ctx.arc": target}
        arcs.append(arc)
    if not arcs:
        return None
    return {"spec": {"mode": draw(st.sampled_from(["exclusive", "inclusive"]))}, "arcs": arcs}


@st.composite
def tools(draw: st.DrawFn) -> Any:
    return draw(
        st.sampled_from(
            [
                None,
                {"kind": "python", "code": "result = 1"},
                {"kind": "python", "code": "result = 2"},
                {"kind": "wait", "signal": "go"},
                {"kind": "wait", "duration": "1m"},
                {"kind": "playbook", "path": "child"},
                [{"name": "one", "kind": "noop"}, {"name": "two", "kind": "noop"}],
            ]
        )
    )


@st.composite
def loops(draw: st.DrawFn) -> Any:
    mode = draw(st.sampled_from(["sequential", "parallel"]))
    spec: dict[str, Any] = {"mode": mode}
    if mode == "parallel":
        spec["max_in_flight"] = draw(st.integers(1, 5))
    if draw(st.booleans()):
        spec["chunk"] = draw(st.integers(1, 4))
    failure = draw(
        st.sampled_from(["fail_fast", "best_effort", {"max_failed": 2}, {"max_failed": "20%"}])
    )
    spec["policy"] = {"failure": failure}
    if draw(st.booleans()):
        spec["reduce"] = {"ctx.total": "sum"}
    collection = draw(
        st.sampled_from(["{{ workload.rows }}", "{{ ctx.names | default([1, 2]) }}", [1, 2, 3], []])
    )
    return {"in": collection, "spec": spec}


@st.composite
def steps(draw: st.DrawFn, own: str, names: list[str]) -> dict[str, Any]:
    step: dict[str, Any] = {"step": own}
    tool = draw(tools())
    if tool is not None:
        step["tool"] = tool
    if draw(st.integers(0, 3)) == 0:
        step["loop"] = draw(loops())
    if draw(st.booleans()):
        step["set"] = {"ctx.n": "{{ ctx.n | default(0) + 1 }}"}
    router = draw(routers(own, names))
    if router is not None:
        step["next"] = router
    spec: dict[str, Any] = {}
    if draw(st.integers(0, 3)) == 0:
        spec["join"] = "each"
    if draw(st.integers(0, 3)) == 0:
        spec["timeout"] = "30s"
    policy: dict[str, Any] = {}
    if draw(st.booleans()):
        policy["failure"] = "continue"
    if draw(st.integers(0, 4)) == 0:
        then = {"allow": False, "next": draw(st.sampled_from(names))}
        policy["admit"] = {"rules": [{"when": "{{ workload.flag }}", "then": then}]}
    if policy:
        spec["policy"] = policy
    return {**step, "spec": spec} if spec else step


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    names = NAMES[: draw(st.integers(1, len(NAMES)))]
    executor: dict[str, Any] = {"entry_step": names[0]}
    if len(names) > 1 and draw(st.integers(0, 4)) == 0:
        executor["final_step"] = names[-1]
    workflow = [draw(steps(name, names)) for name in names]
    if "final_step" in executor:
        _ends_the_execution(workflow[-1])
    if draw(st.integers(0, 4)) == 0:
        executor["timeout"] = "1h"
    if draw(st.integers(0, 4)) == 0:
        executor["no_next_is_error"] = True
    return {
        "apiVersion": "noetl.io/v2",
        "kind": "Playbook",
        "metadata": {"name": "generated"},
        "executor": {"spec": executor},
        "workload": {
            "rows": draw(st.lists(st.integers(0, 9), max_size=8)),
            "flag": draw(st.booleans()),
        },
        "workflow": workflow,
    }


def _ends_the_execution(final: dict[str, Any]) -> None:
    """Nothing may follow a final step."""
    final.pop("next", None)
    for rule in final.get("spec", {}).get("policy", {}).get("admit", {}).get("rules", []):
        rule["then"].pop("next", None)

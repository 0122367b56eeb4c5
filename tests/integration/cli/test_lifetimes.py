"""How long results stay, as users have it: lifetimes in a playbook, the operator's retention, pins, and what is left to see."""

from pathlib import Path

from tests.stack import NoetlCommand, run_stack, write_playbook
from tests.waiting import until

NOW = {
    "NOETL_STORAGE_SWEEP_SEC": "1",
    "NOETL_STORAGE_ORPHAN_AGE_SEC": "0",
    "NOETL_STORAGE_RETENTION_SEC": "0",
}
STEPS = """  - step: small
    tool: {kind: python, code: "result = {'n': 1}"}
    next: large
  - step: large
    tool: {kind: python, code: "result = [{'n': n + k, 'k': k} for n in range(20)]", input: {k: "{{ small.n }}"},
           output: {store: disk}}
    next: kept
  - step: kept
    tool: {kind: python, code: "result = {'n': rows | length}", input: {rows: "{{ large.rows }}"},
           output: {scope: permanent}}
    next: pinned
  - step: pinned
    tool: {kind: python, code: "result = [{'n': n} for n in range(30)]", output: {store: disk}}
    next: late
  - step: late
    tool: {kind: python, code: "result = 5", output: {ttl: 9d, scope: step}}
"""


def files(home: Path) -> list[str]:
    return sorted(path.parent.name for path in (home / "results").glob("*/result/*/*"))


def test_results_go_when_their_time_is_over_and_what_is_pinned_stays(
    noetl: NoetlCommand, tmp_path: Path
) -> None:
    said = noetl.json(
        "run", write_playbook(tmp_path, "lives", STEPS.replace("rows | length", "len(rows)"))
    )
    assert said["status"] == "completed"
    id_ = said["execution_id"]
    assert noetl("result", "pin", id_, "pinned").out == "the result of pinned stays\n"
    assert noetl.json("result", "pin", id_, "pinned") == {
        "execution_id": id_,
        "step": "pinned",
        "pinned": True,
    }
    assert files(noetl.home) == ["large", "pinned"]
    before = noetl.json("result", "usage", id_)
    assert (before["expired"], before["pinned"], set(before["tiers"])) == (
        0,
        ["pinned"],
        {"kv", "disk"},
    )
    assert "pinned" in noetl("result", "show", id_, "pinned").out

    with run_stack(noetl.with_env(**NOW)) as stack:
        here = stack.client
        with stack.run_worker():
            until(lambda: files(noetl.home) == ["pinned"])
        for step in ("small", "large"):
            gone = here("result", "show", id_, step)
            assert (gone.code, gone.out) == (2, "")
            assert f"the result of step {step} of execution {id_} expired at " in gone.err
            assert f"noetl exec rerun {id_}" in gone.err
        assert here("result", "get", id_, "large").code == 2
        assert here("result", "pin", id_, "small").code == 2
        assert here.json("result", "show", id_, "kept") == {"n": 20}
        assert here.json("result", "show", id_, "late") == 5
        assert len(here.json("result", "show", id_, "pinned")) == 30

        trace = here.json("trace", id_, "kept")
        assert {node["step"]: node["expired_at"] is not None for node in trace["nodes"]} == {
            "kept": False, "large": True, "small": True,
        }  # fmt: skip
        assert (
            sum("  expired 20" in line for line in here("trace", id_, "kept").out.splitlines()) == 2
        )
        after = here.json("result", "usage", id_)
        assert (after["tiers"]["disk"]["count"], after["expired"] > 1, after["pinned"]) == (
            1,
            True,
            ["pinned"],
        )
        page = here.json("result", "usage", "--limit", 1)
        assert (page["executions"], page["next"]) == ([after], id_)
        assert [total["path"] for total in page["playbooks"]] == ["lives"]
        assert here.json("result", "usage", "--before", id_)["executions"] == []
        told = here("result", "usage").out
        assert id_ in told
        assert "PLAYBOOK" in told

        unpinned = {"execution_id": id_, "step": "pinned", "pinned": False}
        assert here.json("result", "unpin", id_, "pinned") == unpinned
        until(lambda: here("result", "show", id_, "pinned").code == 2)


def test_a_retry_that_needs_what_has_expired_says_so(noetl: NoetlCommand, tmp_path: Path) -> None:
    steps = STEPS.split("    next: kept")[0] + (
        "    next: fails\n"
        '  - step: fails\n    tool: {kind: python, code: "raise ValueError(rows)", input: {rows: "{{ large.rows }}"}}\n'
    )
    said = noetl.json("run", write_playbook(tmp_path, "fails", steps), code=1)
    id_ = said["execution_id"]
    with run_stack(noetl.with_env(**NOW), workers=1) as stack:
        until(lambda: not [name for name in files(noetl.home) if name == "large"])
        again = stack.client.json("exec", "retry", id_, "--watch", code=1)
        assert again["error"]["code"] == "RESULT_EXPIRED"
        assert f"the result of step large of execution {id_} expired" in again["error"]["message"]

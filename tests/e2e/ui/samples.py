"""Playbooks that several files of these tests run, and how they read the page."""

from typing import Any

from tests.e2e.conftest import StackClient
from tests.e2e.ui.browser import WatchedTab

SCORE = """
  - step: plan
    tool: {kind: python, input: {n: "{{ workload.n }}"}, code: "result = list(range(n))"}
    set: {ctx.planned: "{{ workload.n }}"}
    next: score
  - step: score
    loop:
      in: "{{ plan.rows }}"
      iterator: each
      spec: {mode: parallel, policy: {failure: at_end}}
    tool:
      kind: python
      input: {each: "{{ each }}", bad: "{{ workload.bad }}"}
      code: |
        if each in bad:
            print("loading", each)
            raise ValueError(f"cannot score {each}")
        if each == 11:
            raise KeyError("weight")
        result = each
    next: report
  - step: report
    tool: {kind: python, code: "result = 1"}
"""

APPROVAL = """
  - step: ask
    tool: {kind: wait, approval: {who: finance, amount: 950}}
    next: pay
  - step: pay
    tool: {kind: python, code: "result = 'paid'"}
"""

SKIPS = """
  - {step: one, tool: {kind: noop}, set: {ctx.n: 5}, next: two}
  - step: two
    spec: {policy: {admit: {rules: [{when: "{{ ctx.n > 3 }}", then: {allow: false, next: three}}]}}}
    tool: {kind: noop}
    next: four
  - {step: three, tool: {kind: noop}}
  - {step: four, tool: {kind: noop}}
"""


def run_score(client: StackClient, n: int, bad: list[int]) -> str:
    ended = client.run(SCORE, workload={"n": n, "bad": bad})
    assert ended["status"] == "failed"
    return str(ended["execution_id"])


def read_region(tab: WatchedTab, name: str) -> Any:
    return tab.page.get_by_role("region", name=name, exact=True)

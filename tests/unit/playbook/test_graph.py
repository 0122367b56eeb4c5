"""Pictures of playbooks."""

from noetl.playbook import graph
from noetl.playbook.validation import load_or_raise

TEXT = """
metadata: {name: demo}
executor: {spec: {final_step: report}}
workload: {rows: []}
workflow:
  - step: start
    tool: {kind: python, code: "result = 1"}
    next: [{step: each, when: "{{ output.status == 'ok' }}"}, {step: start, when: "{{ ctx.again | default(false) }}"}]
  - step: each
    loop: {in: "{{ rows }}", spec: {mode: parallel}}
    tool: {kind: http, url: "http://a"}
    next: done
  - step: done
  - step: report
  - step: alone
"""


def test_tree_shows_every_step_once_and_refers_back() -> None:
    assert graph.draw_tree(load_or_raise(TEXT)) == (
        "demo\n"
        "start (python)\n"
        "├─ [output.status == 'ok'] each (http) ↻ parallel\n"
        "│  └─ done (noop)\n"
        "└─ [ctx.again | default(false)] start ↑\n"
        "report (noop) (final)\n"
        "alone (noop) (unreachable)\n"
    )


def test_chain_is_drawn_flat() -> None:
    steps = [f"  - {{step: s{n}, next: s{n + 1}}}\n" for n in range(2000)]
    text = "metadata: {name: chain}\nworkflow:\n" + "".join(steps) + "  - step: s2000\n"
    lines = graph.draw_tree(load_or_raise(text)).splitlines()
    assert lines[1:3] == ["s0 (noop)", "→ s1 (noop)"]
    assert len(lines) == 2002


def test_mermaid_quotes_what_it_shows() -> None:
    drawn = graph.draw_mermaid(load_or_raise(TEXT))
    assert drawn.startswith("flowchart TD\n")
    assert 's1(["each<br/><small>http</small>"])' in drawn
    assert "s0 -->|\"output.status == 'ok'\"| s1" in drawn
    assert 's0 -->|"ctx.again #124; default(false)"| s0' in drawn
    assert "entry(( )) --> s0" in drawn

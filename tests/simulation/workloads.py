"""What the simulated system is asked to do: generated playbooks, and requests sent while they run.

Every case is drawn from small menus, so that the same case comes back in many seeds and its undisturbed outcome is computed once.
The tool is `python` with a body in a tiny language of its own (see `tools.py`): `ok()`, `fail(n)`, `fail()`, `slow(s)`, `hang()`,
`rows(n)`, `value(x)`. Whether it fails depends on the policy's try and the item only, never on how often machines died, so a case
marked `settled` must end as it ends undisturbed.
"""

from dataclasses import dataclass, field
from random import Random
from typing import Any

from noetl.model.ids import derive_id
from noetl.model.messages import RetryChoice
from tests.failures import CELLS, Expected, FailureCell, find_expected


@dataclass(frozen=True)
class Act:
    """A request from outside, `after` seconds from the start of the execution."""

    after: float
    what: str  # signal, cancel, pause, resume
    name: str = ""
    payload: Any = None


@dataclass(frozen=True)
class SimCase:
    name: str
    text: str
    payload: dict[str, Any] = field(default_factory=dict)
    children: tuple[tuple[str, str], ...] = ()
    acts: tuple[Act, ...] = ()
    settled: bool = True  # ends the same however it is disturbed
    retry: bool = False  # once it has ended, it is retried: a new execution with `retry_of`
    only: RetryChoice | None = None  # what the retry runs again, if not all that did not finish
    waits: bool = False  # it may wait for ever for a thing that has a name
    copies: int = 1
    blocks: bool = False  # a tool of it may keep its place until another one of it has run
    # Its tools run however late they are; not so when a timeout may come first.
    punctual: bool = True
    expected: Expected | None = None  # how a cell of the failure matrix ends
    loses_workers: bool = False  # a tool of it kills its workers

    @property
    def path(self) -> str:
        return (
            f"sim/{self.name.partition('-')[0]}-{derive_id(self.text)[:10]}"  # one text, one path
        )


def book(name: str, steps: str, *, executor: str = "", workload: str = "{}") -> str:
    spec = f"executor: {{spec: {{{executor}}}}}\n" if executor else ""
    return f"apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {{name: {name}}}\n{spec}workload: {workload}\nworkflow:\n{steps}"


def tool(body: str, **more: str) -> str:
    fields = "".join(f", {key}: {value}" for key, value in more.items())
    return f'{{kind: python, code: "{body}"{fields}}}'


def step(name: str, does: str = "", *, after: str = "", **more: str) -> str:
    lines = [f"  - step: {name}"]
    lines += [f"    {key}: {value}" for key, value in more.items()]
    if does:
        lines.append(f"    tool: {does}")
    if after:
        lines.append(f"    next: {after}")
    return "\n".join(lines) + "\n"


# ---- the menus ---------------------------------------------------------------------------------------------------------


def chain(rng: Random) -> SimCase:
    length, body = rng.choice((1, 3, 4)), rng.choice(("ok()", "value(7)", "slow(0.3)", "slow(2.5)"))
    steps = ""
    for number in range(length):
        more = {"set": '{ctx.n: "{{ ctx.n | default(0) + 1 }}"}'}
        after = f"s{number + 1}" if number + 1 < length else ""
        does = tool(body, input='{n: "{{ ctx.n | default(0) }}"}') if number else tool(body)
        steps += step(f"s{number}", does, after=after, **more)
    return SimCase(f"chain-{length}-{body}", book("chain", steps))


def routes(rng: Random) -> SimCase:
    number = rng.choice((1, 5))
    steps = step(
        "s0",
        tool(f"value({number})"),
        after='[{step: big, when: "{{ output.data.value > 3 }}"}, small]',
    )
    steps += step(
        "big",
        tool("ok()"),
        after='{spec: {mode: inclusive}, arcs: [{step: last, when: "{{ s0.value == 5 }}"}]}',
    )
    steps += step("small", tool("ok()"), after="last")
    steps += step("last", tool("ok()", input='{v: "{{ s0.value }}"}'))
    return SimCase(f"routes-{number}", book("routes", steps))


def fork(rng: Random) -> SimCase:
    width, slow = rng.choice((2, 3)), rng.choice(("ok()", "slow(1.5)"))
    arms = ", ".join(f"{{step: b{number}}}" for number in range(width))
    steps = step("s0", tool("ok()"), after=f"{{spec: {{mode: inclusive}}, arcs: [{arms}]}}")
    for number in range(width):
        steps += step(f"b{number}", tool(slow if number == 0 else "ok()"), after="meet")
    steps += step("meet", tool("ok()"), after="last")
    steps += step("last", tool("ok()"))
    return SimCase(f"fork-{width}-{slow}", book("fork", steps))


def failing(rng: Random) -> SimCase:
    policy, slow = rng.choice(("fail_fast", "continue")), rng.choice(("slow(3)", "hang()", "ok()"))
    if policy == "continue" and slow == "hang()":
        slow = "slow(1)"
    steps = step(
        "s0", tool("ok()"), after="{spec: {mode: inclusive}, arcs: [{step: bad}, {step: other}]}"
    )
    steps += step(
        "bad",
        tool("slow(0.5); fail()"),
        spec=f"{{policy: {{failure: {policy}}}}}",
        after='[{step: never, when: "{{ false }}"}]',
    )
    steps += step("other", tool(slow), after="tail")
    steps += step("tail", tool("ok()"))
    steps += step("never", tool("ok()"))
    retry, blocks = rng.random() < 0.4, slow == "hang()"
    return SimCase(
        f"failing-{policy}-{slow}",
        book("failing", steps),
        settled=False,
        retry=retry,
        blocks=blocks,
    )


def handled_failure(rng: Random) -> SimCase:
    steps = step(
        "s0",
        tool("fail()"),
        after="[{step: rescue, when: \"{{ event.name == 'call.error' }}\"}, never]",
    )
    steps += step("rescue", tool("ok()", input='{why: "{{ s0.error.code | default(1) }}"}'))
    steps += step("never", tool("ok()"))
    return SimCase("handled", book("handled", steps))


def final(rng: Random) -> SimCase:
    body = rng.choice(("ok()", "fail()"))
    steps = step("s0", tool(body))
    steps += step("report", tool("ok()", input='{status: "{{ execution.status }}"}'))
    return SimCase(f"final-{body}", book("final", steps, executor="final_step: report"))


def _loop(items: str, mode: str, more: str = "") -> str:
    return f"{{in: {items}, iterator: item, spec: {{mode: {mode}{more}}}}}"


def looping(rng: Random) -> SimCase:
    size = rng.choice((0, 1, 3, 6))
    mode = rng.choice(("sequential", "parallel"))
    body = rng.choice(("ok()", "slow(0.4)", "slow(1.2)", "fail(1)"))
    chunk = rng.choice(("", ", chunk: 2", ", chunk: 1"))
    window = rng.choice(("", ", max_in_flight: 2")) if mode == "parallel" else ""
    source = rng.choice(("inline", "workload", "rows"))
    items = {
        "inline": str(list(range(size))),
        "workload": '"{{ workload.items }}"',
        "rows": '"{{ s0.rows }}"',
    }[source]
    policy = "{policy: {rules: [{when: \"{{ output.status == 'error' }}\", then: {do: retry, attempts: 3, delay: 100ms}}]}}"
    gathers = source == "rows"
    reduce = (
        ", reduce: {ctx.total: sum, ctx.seen: append}" if gathers else ", reduce: {ctx.total: sum}"
    )
    number = "item.n" if gathers else "item"
    seen = ', ctx.seen: "{{ item }}"' if gathers else ""
    steps = step("s0", tool(f"records({size})" if gathers else f"rows({size})"), after="each")
    does = tool(
        body,
        input=f'{{item: "{{{{ {number} }}}}", at: "{{{{ loop.index }}}}"}}',
        spec=policy,
        set=f'{{ctx.total: "{{{{ {number} }}}}"{seen}}}',
    )
    steps += step("each", does, loop=_loop(items, mode, chunk + window + reduce), after="last")
    counted = ', seen: "{{ ctx.seen | default([]) | length }}"' if gathers else ""
    steps += step(
        "last", tool("ok()", input=f'{{total: "{{{{ ctx.total | default(0) }}}}"{counted}}}')
    )
    return SimCase(
        f"looping-{size}-{mode}-{body}-{chunk}-{window}-{source}",
        book("looping", steps, workload="{items: []}"),
        payload={"items": list(range(size))} if source == "workload" else {},
    )


def bad_loop(rng: Random) -> SimCase:
    """Items 1 and 3 always fail."""
    size, mode = rng.choice((3, 5)), rng.choice(("sequential", "parallel"))
    policy = rng.choice(
        ("fail_fast", "best_effort", "at_end", "{max_failed: 1}", "{max_failed: 50%}")
    )
    window = rng.choice((", max_in_flight: 2", ", chunk: 2", ""))
    if mode == "sequential":
        window = window.replace(", max_in_flight: 2", "")
    steps = step("s0", tool("ok()"), after="each")
    steps += step(
        "each", tool("slow(0.3); fail_items(1, 3)", input='{item: "{{ item }}"}'),
        loop=_loop(str(list(range(size))), mode, f"{window}, policy: {{failure: {policy}}}"),
        after="[{step: rescue, when: \"{{ output.status == 'error' }}\"}, {step: last, when: \"{{ output.status == 'ok' }}\"}]",
    )  # fmt: skip
    steps += step("last", tool("ok()"))
    steps += step("rescue", tool("ok()"))
    settled = policy in ("best_effort", "at_end") or (
        mode == "sequential" and "chunk" not in window
    )
    return SimCase(
        f"bad_loop-{size}-{mode}-{policy}-{window}", book("bad_loop", steps), settled=settled
    )


def retried_loop(rng: Random) -> SimCase:
    """A loop with failed items fails its execution, or not; a retry runs the failed ones, or one of
    them: the other stays failed, and the loop fails again."""
    policy = rng.choice(("{max_failed: 0}", "at_end", "best_effort"))
    steps = step("s0", tool("rows(4)"), after="each")
    steps += step(
        "each", tool("fail_items(1, 3)", input='{item: "{{ item }}"}'),
        loop=_loop('"{{ s0.rows }}"', "parallel", f", chunk: 1, policy: {{failure: {policy}}}"), after="last",
    )  # fmt: skip
    steps += step("last", tool("ok()"))
    only = RetryChoice(items={"each": (3,)}) if policy == "at_end" else None
    text = book("retried_loop", steps)
    return SimCase(f"retried_loop-{policy}", text, retry=True, only=only, settled=False)


def deferred_loop(rng: Random) -> SimCase:
    """An item leaves its chunk if its retry waits longer than a worker is held."""
    mode, chunk = rng.choice(("sequential", "parallel")), rng.choice((1, 3))
    policy = "{policy: {rules: [{when: \"{{ output.status == 'error' }}\", then: {do: retry, attempts: 3, delay: 6s}}]}}"
    steps = step("s0", tool("ok()"), after="each")
    steps += step(
        "each", tool("fail_item(1, 1)", input='{item: "{{ item }}"}', spec=policy),
        loop=_loop("[0, 1, 2]", mode, f", chunk: {chunk}"), after="last",
    )  # fmt: skip
    steps += step("last", tool("ok()"))
    return SimCase(f"deferred_loop-{mode}-{chunk}", book("deferred_loop", steps))


def cycle(rng: Random) -> SimCase:
    """The same loop is entered again: a new epoch each time."""
    rounds = rng.choice((2, 3))
    steps = step("s0", tool("ok()"), set="{ctx.round: 0}", after="each")
    steps += step(
        "each", tool("ok()", input='{item: "{{ item }}", round: "{{ ctx.round }}"}'),
        loop=_loop("[0, 1, 2]", "parallel", ", chunk: 1"), set='{ctx.round: "{{ ctx.round + 1 }}"}',
        after=f'[{{step: each, when: "{{{{ ctx.round < {rounds} }}}}"}}, last]',
    )  # fmt: skip
    steps += step("last", tool("ok()"))
    return SimCase(f"cycle-{rounds}", book("cycle", steps))


def pipeline(rng: Random) -> SimCase:
    tries, delay = rng.choice((0, 1, 2, 3)), rng.choice(("100ms", "1s"))
    jump = rng.random() < 0.5
    retry = f"{{when: \"{{{{ output.status == 'error' }}}}\", then: {{do: retry, attempts: 3, delay: {delay}}}}}"
    back = '{when: "{{ _attempt == 1 and ctx.jumped is not defined }}", then: {do: jump, to: one, set: {ctx.jumped: 1}}}'
    rules = "[" + (back if jump else "") + "]"
    tasks = (
        '[{name: one, kind: python, code: "ok()", set: {ctx.one: 1}}, '
        f'{{name: two, kind: python, code: "fail({tries})", spec: {{policy: {{rules: [{retry}]}}}}}}, '
        f'{{name: three, kind: python, code: "slow(0.2)", spec: {{policy: {{rules: {rules}}}}}}}, '
        '{name: four, kind: python, code: "ok()", input: {p: "{{ _prev.value | default(0) }}"}}]'
    )
    steps = step(
        "s0", tasks, after="[{step: bad, when: \"{{ event.name == 'call.error' }}\"}, last]"
    )
    steps += step("last", tool("ok()", input='{one: "{{ ctx.one }}"}')) + step("bad", tool("ok()"))
    return SimCase(f"pipeline-{tries}-{delay}-{jump}", book("pipeline", steps))


def parked_retry(rng: Random) -> SimCase:
    tries = rng.choice((1, 2, 3))
    policy = "{policy: {rules: [{when: \"{{ output.status == 'error' }}\", then: {do: retry, attempts: 3, delay: 7s}}]}}"
    tasks = f'[{{name: one, kind: python, code: "ok()"}}, {{name: two, kind: python, code: "fail({tries})", spec: {policy}}}]'
    steps = step(
        "s0", tasks, after="[{step: bad, when: \"{{ event.name == 'call.error' }}\"}, last]"
    )
    steps += step("last", tool("ok()")) + step("bad", tool("ok()"))
    return SimCase(f"parked-{tries}", book("parked", steps))


def waiting(rng: Random) -> SimCase:
    kind = rng.choice(("time", "signal", "timeout", "pipeline"))
    acts: tuple[Act, ...] = ()
    if kind == "time":
        does = "{kind: wait, duration: 3s}"
    elif kind == "signal":
        does = "{kind: wait, signal: go}"
        acts = (Act(rng.choice((0.0, 2.0, 8.0)), "signal", "go", {"x": 1}),)
    elif kind == "timeout":
        does = "{kind: wait, signal: never, timeout: 4s}"
    else:
        one, nap, two = (
            '{name: one, kind: python, code: "ok()"}',
            "{name: nap, kind: wait, duration: 2s}",
            "{name: two, kind: noop}",
        )
        does = f"[{one}, {nap}, {two}]"
    steps = step("s0", tool("ok()"), after="hold")
    steps += step(
        "hold", does, after="[{step: late, when: \"{{ event.name == 'call.error' }}\"}, last]"
    )
    steps += step("last", tool("ok()")) + step("late", tool("ok()"))
    return SimCase(f"waiting-{kind}-{acts}", book("waiting", steps), acts=acts)


def child(rng: Random) -> SimCase:
    body = rng.choice(("ok()", "slow(1.2)", "fail()"))
    kind = rng.choice(("one", "loop", "detached"))
    inner = book(
        "inner",
        step("c0", tool(body, input='{k: "{{ workload.k }}"}'), after="c1")
        + step("c1", tool("value(3)")),
        workload="{k: 0}",
    )
    path = f"sim/inner-{derive_id(inner)[:10]}"
    call = f"{{kind: playbook, path: {path}, input: {{k: 1}}, return_step: c1}}"
    if kind == "detached":
        call = f"{{kind: playbook, path: {path}, input: {{k: 1}}, wait: false}}"
    after = "[{step: bad, when: \"{{ output.status == 'error' }}\"}, last]"
    if kind == "loop":
        call = f'{{kind: playbook, path: {path}, input: {{k: "{{{{ item }}}}"}}}}'
        steps = step(
            "s0",
            call,
            loop=_loop(
                "[1, 2, 3]", "parallel", ", max_in_flight: 2, policy: {failure: best_effort}"
            ),
            after=after,
        )
    else:
        steps = step("s0", call, after=after)
    steps += step("last", tool("ok()")) + step("bad", tool("ok()"))
    # a detached child's id is the parent's value
    return SimCase(
        f"child-{kind}-{body}",
        book("child", steps),
        children=((path, inner),),
        settled=kind != "detached",
    )


def row_children(rng: Random) -> SimCase:
    """Children that get texts of rows: their input travels by reference, and theirs to their own child."""
    body = rng.choice(("ok()", "slow(1.2)", "fail_items(1)"))
    given = '{mark: "{{ workload.mark }}", item: "{{ workload.item }}"}'
    workload = "{mark: '', item: 0}"
    below = book("below", step("c0", tool(body, input=given)), workload=workload)
    below_path = f"sim/below-{derive_id(below)[:10]}"
    inner = book(
        "marked",
        step("c0", tool("ok()", input=given), after="c1")
        + step("c1", f"{{kind: playbook, path: {below_path}, input: {given}}}"),
        workload=workload,
    )
    path = f"sim/marked-{derive_id(inner)[:10]}"
    steps = step("s0", tool("records(3)"), after="each")
    steps += step(
        "each",
        f'{{kind: playbook, path: {path}, input: {{mark: "{{{{ item.mark }}}}", item: "{{{{ item.n }}}}"}}}}',
        loop=_loop(
            '"{{ s0.rows }}"', "parallel", ", max_in_flight: 2, policy: {failure: best_effort}"
        ),
        after="last",
    )
    steps += step("last", tool("ok()"))
    return SimCase(
        f"row_children-{body}",
        book("row_children", steps),
        children=((path, inner), (below_path, below)),
    )


def failing_children(rng: Random) -> SimCase:
    """A loop over child playbooks that stops early: children 1 and 3 fail, the others end late or not by themselves."""
    policy = rng.choice(("fail_fast", "{max_failed: 1}"))
    rest = rng.choice((tool("ok()"), tool("slow(1.5)"), "{kind: wait, signal: never}"))
    window = rng.choice((3, 5))
    inner = book(
        "inner_failing",
        step(
            "c0",
            tool("slow(0.3); fail_items(1, 3)", input='{item: "{{ workload.item }}"}'),
            after="c1",
        )
        + step("c1", rest),
        workload="{item: 0}",
    )
    path = f"sim/inner_failing-{derive_id(inner)[:10]}"
    handled = rng.random() < 0.5
    after = (
        "[{step: rescue, when: \"{{ output.status == 'error' }}\"}, last]" if handled else "last"
    )
    steps = step(
        "s0",
        f'{{kind: playbook, path: {path}, input: {{item: "{{{{ item }}}}"}}}}',
        loop=_loop(
            str(list(range(8))),
            "parallel",
            f", max_in_flight: {window}, policy: {{failure: {policy}}}",
        ),
        after=after,
    )
    steps += step("last", tool("ok()")) + step("rescue", tool("ok()"))
    return SimCase(
        f"failing_children-{policy}-{rest}-{window}-{handled}",
        book("failing_children", steps),
        children=((path, inner),),
        settled=False,
    )


def busy_children(rng: Random) -> SimCase:
    """A loop over child playbooks that stops early while every child begins a step every few milliseconds, so that commands are
    stopped as they arrive at their workers."""
    policy = rng.choice(("fail_fast", "{max_failed: 0}"))
    width = rng.choice((6, 10))
    first = step(
        "c0", tool("slow(0.01); fail_items(1)", input='{item: "{{ workload.item }}"}'), after="c1"
    )
    following = (
        step(f"c{number}", tool("slow(0.003)"), after=f"c{number + 1}")
        for number in range(1, BUSY_STEPS)
    )
    inner = book(
        "inner_busy",
        first + "".join(following) + step(f"c{BUSY_STEPS}", tool("ok()")),
        workload="{item: 0}",
    )
    path = f"sim/inner_busy-{derive_id(inner)[:10]}"
    call = f'{{kind: playbook, path: {path}, input: {{item: "{{{{ item }}}}"}}}}'
    spec = f", max_in_flight: {width}, policy: {{failure: {policy}}}"
    steps = step("s0", call, loop=_loop(str(list(range(width))), "parallel", spec))
    return SimCase(
        f"busy_children-{policy}-{width}",
        book("busy_children", steps),
        children=((path, inner),),
        settled=False,
    )


def cancelled_execution(rng: Random) -> SimCase:
    inner = book("inner_slow", step("c0", tool("slow(3)"), after="c1") + step("c1", tool("hang()")))
    shape = rng.choice(("chain", "loop", "child", "wait", "queue"))
    if shape == "chain":
        steps = step("s0", tool("slow(1)"), after="s1") + step("s1", tool("hang()"))
    elif shape == "loop":
        steps = step(
            "s0",
            tool("slow(2)"),
            loop=_loop(str(list(range(6))), "parallel", ", chunk: 1, max_in_flight: 4"),
            after="s1",
        )
        steps += step("s1", tool("ok()"))
    elif shape == "child":
        steps = step("s0", "{kind: playbook, path: sim/inner_slow}", after="s1") + step(
            "s1", tool("ok()")
        )
    elif shape == "queue":
        arms = ", ".join(f"{{step: b{number}}}" for number in range(6))
        steps = step("s0", tool("ok()"), after=f"{{spec: {{mode: inclusive}}, arcs: [{arms}]}}")
        steps += "".join(step(f"b{number}", tool("slow(2)")) for number in range(6))
    else:
        steps = step("s0", "{kind: wait, signal: never}", after="s1") + step("s1", tool("ok()"))
    at = rng.choice((0.0, 0.4, 2.0, 5.0))
    acts = [Act(at, "cancel")]
    if shape == "child":
        return SimCase(
            f"cancelled-{shape}-{at}",
            book("cancelled", steps),
            acts=tuple(acts),
            children=(("sim/inner_slow", inner),),
            settled=False,
        )
    return SimCase(
        f"cancelled-{shape}-{at}", book("cancelled", steps), acts=tuple(acts), settled=False
    )


def paused_execution(rng: Random) -> SimCase:
    """Paused in the middle and resumed: it ends as if it had not been."""
    first = rng.choice((0.0, 0.5, 1.5))
    steps = step("s0", tool("slow(0.4)"), after="each")
    steps += step(
        "each",
        tool("slow(0.5)"),
        loop=_loop("[0, 1, 2, 3]", "parallel", ", chunk: 1, max_in_flight: 2"),
        after="hold",
    )
    steps += step("hold", "{kind: wait, duration: 1s}", after="last") + step("last", tool("ok()"))
    return SimCase(
        f"held-{first}", book("held", steps), acts=(Act(first, "pause"), Act(first + 3, "resume"))
    )


def noisy(rng: Random) -> SimCase:
    """Signals nobody waits for, some of them about when the execution ends."""
    acts = tuple(
        Act(after, "signal", "noise", after)
        for after in (0.0, rng.choice((0.02, 0.05, 0.1)), rng.choice((0.2, 0.6)))
    )
    steps = step("s0", tool("ok()"), after="last") + step("last", tool("ok()"))
    return SimCase(f"noisy-{acts[1].after}-{acts[2].after}", book("noisy", steps), acts=acts)


def patient(rng: Random) -> SimCase:
    """A tool that runs longer than a lease: it lives on renewals alone."""
    body = rng.choice(("slow(9)", "slow(14)"))
    steps = step("s0", tool(body), after="last") + step("last", tool("ok()"))
    return SimCase(f"patient-{body}", book("patient", steps))


def stamped_values(rng: Random) -> SimCase:
    """Values that are different each time they are made: two attempts must not meet in one place."""
    steps = step(
        "s0",
        '[{name: one, kind: python, code: "stamp()"}, {name: two, kind: python, code: "slow(0.4); stamp()"}]',
        after="each",
    )
    steps += step(
        "each",
        tool("slow(0.3); stamp()"),
        loop=_loop("[0, 1, 2]", "parallel", ", chunk: 2"),
        after="last",
    )
    steps += step("last", tool("ok()"))
    return SimCase("stamped", book("stamped", steps), settled=False)


def timed_step(rng: Random) -> SimCase:
    kind = rng.choice(("step", "task", "execution"))
    if kind == "execution":
        steps = step("s0", tool("hang()"), after="last") + step("last", tool("ok()"))
        return SimCase(
            "timed-execution", book("timed", steps, executor="timeout: 5s"), settled=False
        )
    limit = {"spec": "{timeout: 2s}"} if kind == "step" else {}
    does = tool("hang()") if kind == "step" else tool("hang()", timeout="2s")
    steps = step(
        "s0",
        does,
        after="[{step: late, when: \"{{ event.name == 'call.error' }}\"}, last]",
        **limit,
    )
    steps += step("last", tool("ok()")) + step("late", tool("ok()"))
    return SimCase(f"timed-{kind}", book("timed", steps), punctual=False)


def asked_worker(rng: Random) -> SimCase:
    """An expression the server cannot evaluate without data: a worker does it."""
    steps = step("s0", tool("rows(3)"), set="{ctx.i: 1}", after="s1")
    steps += step(
        "s1", tool("ok()"), after='[{step: last, when: "{{ s0.rows[ctx.i] == 1 }}"}, bad]'
    )
    steps += step("last", tool("ok()")) + step("bad", tool("ok()"))
    return SimCase("asked", book("asked", steps))


def crowd(rng: Random) -> SimCase:
    """Several executions of a playbook that runs one at a time."""
    steps = step("s0", tool("slow(0.5)"), after="last") + step("last", tool("ok()"))
    return SimCase("crowd", book("crowd", steps, executor="max_concurrent: 1"), copies=3)


def watermark(rng: Random) -> SimCase:
    """Executions of one playbook that count in its state, side by side or one at a time. Who loses a race fails or handles it."""
    how = rng.choice(("step", "task", "journal", "arc", "loop"))
    serial = rng.random() < 0.3
    write = '{state.n: "{{ state.n | default(0) + 1 }}"}'
    conflict = "{{ output.status == 'error' and error.code == 'STATE_CONFLICT' }}"
    handled = "" if rng.random() < 0.5 else f', {{step: lost, when: "{conflict}"}}'
    then = f"[{{step: last, when: \"{{{{ output.status == 'ok' }}}}\"}}{handled}]"
    steps = step("s0", tool("slow(0.3)", input='{since: "{{ state.n | default(0) }}"}'), after="s1")
    match how:
        case "step":
            steps += step("s1", tool("slow(0.2)"), set=write, after=then)
        case "task":
            steps += step("s1", tool("slow(0.2)", set=write), after=then)
        case "journal":
            first = tool("slow(0.2)", name="t0", set=write)
            steps += step("s1", f"[{first}, {tool('slow(0.5)', name='t1')}]", after=then)
        case "arc":
            steps += step("s1", tool("slow(0.2)"), after=f"[{{step: last, set: {write}}}]")
        case _:
            count = (
                "{in: [1, 1, 1], iterator: item, spec: {mode: parallel, reduce: {state.n: sum}}}"
            )
            one = '{state.n: "{{ item if item is defined and loop.first else 0 }}"}'
            steps += step("s1", tool("slow(0.2)", set=one), loop=count, after=then)
    steps += step("last", tool("ok()")) + step("lost", tool("ok()"))
    executor = "max_concurrent: 1" if serial else ""
    retry = not serial and rng.random() < 0.3
    text = book("watermark", steps, executor=executor)
    return SimCase(f"watermark-{how}", text, copies=3, settled=False, retry=retry)


# ---- the failure matrix ------------------------------------------------------------------------------------------------

_BODY = {
    "fails": "fail()", "fails_after_retries": "fail()", "times_out": "hang()", "worker_lost": "lose()", "cancelled": "hang()",
}  # fmt: skip
_ITEM_BODY = {
    "fails": "fail_items(1)", "fails_after_retries": "fail_items(1)", "times_out": "hang_item(1)",
    "worker_lost": "lose_item(1)", "cancelled": "hang_item(1)",
}  # fmt: skip
_ARCS = {
    "no_arc": "", "plain_arc": "last", "else_policy": "last",
    "guard_without_outcome": "[{step: last, when: \"{{ workload.mode == 'full' }}\"}]",
    "guard_with_outcome": "[{step: rescue, when: \"{{ output.status == 'error' }}\"}, last]",
}  # fmt: skip


def failure_cell(cell: FailureCell) -> SimCase:
    children: tuple[tuple[str, str], ...] = ()
    more: dict[str, str] = {}
    fields = {"timeout": "2s"} if cell.how == "times_out" else {}
    rules = _rules(cell)
    if rules:
        fields["spec"] = f"{{policy: {{rules: [{rules}]}}}}"
    if cell.unit == "child":
        inner = book("inner_matrix", step("c0", tool(_BODY[cell.how])))
        path = f"sim/inner_matrix-{derive_id(inner)[:10]}"
        children = ((path, inner),)
        does = f"{{kind: playbook, path: {path}{''.join(f', {key}: {value}' for key, value in fields.items())}}}"
    elif cell.unit == "loop":
        does = tool(_ITEM_BODY[cell.how], input='{item: "{{ item }}"}', **fields)
        more["loop"] = _loop("[0, 1, 2]", "sequential", ", chunk: 1")
    elif cell.unit == "spark":
        does = tool(_BODY[cell.how], **fields).replace("kind: python", "kind: spark")
        more["spec"] = "{pool: cpu}"
    else:
        does = tool(_BODY[cell.how], **fields)
    steps = step("s0", does, after=_ARCS[cell.handling], **more)
    steps += step("last", tool("ok()")) + step("rescue", tool("ok()"))
    what = "cancel_child" if cell.unit == "child" else "cancel"
    return SimCase(
        f"matrix-{cell.name}",
        book("matrix", steps, workload="{mode: full}"),
        children=children,
        acts=(Act(1.0, what),) if cell.how == "cancelled" else (),
        settled=False,
        blocks=cell.how in ("times_out", "cancelled"),
        punctual=False,
        expected=find_expected(cell),
        loses_workers=cell.how == "worker_lost",
    )


def _rules(cell: FailureCell) -> str:
    """The rules of the task: what it does after an error, and after everything else."""
    rules = []
    if cell.how == "fails_after_retries":
        rules.append(
            "{when: \"{{ output.status == 'error' }}\", then: {do: retry, attempts: 2, delay: 100ms}}"
        )
    if cell.handling == "else_policy":
        rules.append("{else: {do: continue}}")
    return ", ".join(rules)


MENU = (
    chain, routes, fork, failing, handled_failure, final, looping, looping, bad_loop, retried_loop,
    deferred_loop, cycle, pipeline, pipeline, parked_retry, waiting, child, child, cancelled_execution,
    cancelled_execution, paused_execution, timed_step, asked_worker, crowd, noisy, stamped_values, patient,
    failing_children,
)  # fmt: skip


WITH_STATE = 0.2  # seeds that use state between executions too
WITH_ROW_CHILDREN = 0.1  # seeds with children that get texts of rows too
WITH_BUSY_CHILDREN = 0.1  # seeds with a loop over busy children too
BUSY_STEPS = 12  # of each child
VARIANTS = 24  # of each: so many that each comes back often enough


MATRIX_EVERY = 2  # seeds: the next cell of the failure matrix is one of the executions


def cases(seed: int) -> list[SimCase]:
    rng = Random(f"{seed}:workload")
    chosen = [
        rng.choice(MENU)(Random(rng.randrange(VARIANTS))) for _ in range(rng.choice((1, 2, 2, 3)))
    ]
    state = Random(
        f"{seed}:state"
    )  # a stream of its own: the other cases of a seed stay as they were
    if state.random() < WITH_STATE:
        chosen.append(watermark(Random(state.randrange(VARIANTS))))
    busy = Random(f"{seed}:busy_children")
    if busy.random() < WITH_BUSY_CHILDREN:
        chosen.append(busy_children(busy))
    rows = Random(f"{seed}:rows")
    if rows.random() < WITH_ROW_CHILDREN:
        chosen.append(row_children(Random(rows.randrange(VARIANTS))))
    if seed % MATRIX_EVERY == 0:
        chosen.append(failure_cell(CELLS[seed // MATRIX_EVERY % len(CELLS)]))
    return chosen

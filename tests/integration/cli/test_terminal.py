"""Every command that prints data, at a terminal: nothing of the data is obeyed there."""

import json
import os
import pty
import re
import threading
from typing import Any

import pytest

from tests.stack import ROOT, NoetlCommand
from tests.stack.fork_request import ForkRequest
from tests.stack.forking import start_module
from tests.waiting import HANG_LIMIT_S

HOSTILE = (
    "\x1b[2J\x1b[45m\x1b[6n\x1b]0;title\x07\x1b]52;c;ZXZpbA==\x07\x1b]8;;http://evil.example\x1b\\x\x1b]8;;\x1b\\"
    "real\rFAKE\x08\x0e\x7f\x85\x9b2J\x9d52;c;ZXZpbA==\x9c\u202egnp\u2066i\u2069\u200f\u061c end"
)
WRITTEN = json.dumps(HOSTILE)  # a literal of Python, of JSON and of YAML
# What a terminal may be sent: our colours, and what `rich` draws the list of steps with.
OURS = re.compile(
    rb"\x1b\[(?:0|1|2|3[1-6]|1;3[1-6])m|\x1b\[\?25[lh]|\x1b\[1A|\x1b\[2K|\r\x1b|\r+\n"
)
FORBIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]"
)
PLAYBOOK = f"""apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: hostile, path: terminal/hostile, description: {WRITTEN}}}
workload: {{word: {WRITTEN}}}
workflow:
  - step: shows
    desc: {WRITTEN}
    tool:
      kind: python
      input: {{word: "{{{{ workload.word }}}}"}}
      code: |
        import sys
        print(word)
        print(word, file=sys.stderr)
        result = [{{"text": word, word: 1}}]
    set: {{ctx.kept: "{{{{ workload.word }}}}", state.kept: "{{{{ workload.word }}}}"}}
    next: each
  - step: each
    loop: {{in: "{{{{ [workload.word, 'b'] }}}}", iterator: item, spec: {{mode: parallel, policy: {{failure: best_effort}}}}}}
    tool: {{kind: python, input: {{item: "{{{{ item }}}}"}}, code: "raise ValueError(item)"}}
    next: fails
  - step: fails
    tool: {{kind: python, input: {{word: "{{{{ workload.word }}}}"}}, code: "raise RuntimeError(word)"}}
"""
INVALID = f"""apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: invalid}}
workflow:
  - step: a
    tool: {{kind: {WRITTEN}, code: "{{{{ x | upperr }}}}"}}
    next: {WRITTEN}
"""


def run_at_terminal(noetl: NoetlCommand, *arguments: object) -> bytes:
    """Run the command with a terminal as all of its streams. Returns what the terminal was sent."""
    ours, theirs = pty.openpty()
    request = ForkRequest("noetl", list(map(str, arguments)), str(ROOT), noetl.environment)
    process = start_module(request, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    sent: list[bytes] = []
    reading = threading.Thread(target=_read_all, args=(ours, sent))
    reading.start()
    process.wait(HANG_LIMIT_S)
    reading.join(HANG_LIMIT_S)
    os.close(ours)
    return b"".join(sent)


def _read_all(descriptor: int, sent: list[bytes]) -> None:
    while True:
        try:
            data = os.read(descriptor, 65_536)
        except OSError:  # the command has closed its end
            return
        if not data:
            return
        sent.append(data)


@pytest.fixture(scope="module")
def execution(noetl: NoetlCommand, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("hostile")
    file = folder / "hostile.yaml"
    file.write_text(PLAYBOOK)
    invalid = folder / "invalid.yaml"
    invalid.write_text(INVALID)
    ended = noetl("run", file, "--json")
    assert ended.json["status"] == "failed", ended
    changed = folder / "changed.yaml"
    changed.write_text(PLAYBOOK.replace("best_effort", "at_end"))
    assert noetl("catalog", "register", changed).code == 0
    added = noetl(
        "schedule",
        "add",
        "hostile",
        "terminal/hostile",
        "--every",
        "1h",
        "--set",
        f"word={WRITTEN}",
    )
    assert added.code == 0, added
    return {"id": ended.json["execution_id"], "file": file, "invalid": invalid}


COMMANDS = [
    "run FILE",
    "run FILE --logs",
    "run FILE --json",
    "run FILE --set word=WORD",
    "run MISSING",
    "exec list",
    "exec get ID",
    "exec get ID --json",
    "exec events ID",
    "exec events ID --json",
    "exec logs ID",
    "exec logs ID --json",
    "exec explain ID fails",
    "exec explain ID fails --json",
    "exec items ID each",
    "exec items ID each --json",
    "exec at ID 9",
    "exec retry ID",
    "exec rerun ID",
    "exec signal ID WORD",
    "exec get WORD",
    "trace ID shows",
    "result show ID shows",
    "result show ID shows --json",
    "result export ID shows --format csv",
    "result export ID shows --format json",
    "result usage",
    "state list terminal/hostile",
    "state get terminal/hostile kept",
    "state history terminal/hostile kept",
    "catalog list",
    "catalog list --json",
    "catalog get terminal/hostile",
    "catalog diff terminal/hostile",
    "schedule list",
    "schedule show hostile",
    "schedule show hostile --json",
    "hook list",
    "credential list",
    "token list",
    "validate FILE",
    "validate INVALID",
    "validate INVALID --json",
    "validate MISSING",
    "graph FILE",
    "graph FILE --mermaid",
    "convert FILE",
    "verify ID",
    "doctor",
    "signal ID WORD",
    "WORD",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_the_terminal_obeys_no_data(
    noetl: NoetlCommand, execution: dict[str, Any], command: str
) -> None:
    words = {
        "FILE": execution["file"],
        "INVALID": execution["invalid"],
        "MISSING": f"/nowhere/{HOSTILE.replace('/', '-')}",
        "ID": execution["id"],
        "WORD": HOSTILE,
    }
    arguments = []
    for argument in command.split():
        name, equals, value = argument.partition("=")
        arguments.append(f"{name}={words[value]}" if equals else words.get(argument, argument))
    sent = run_at_terminal(noetl, *arguments)
    assert sent.strip(), "the command prints nothing, so it shows nothing"
    text = OURS.sub(b"", sent).decode()
    assert sorted(map(ascii, set(FORBIDDEN.findall(text)))) == [], ascii(text[:3000])
    assert b"\rFAKE" not in sent


def test_the_data_is_shown_and_not_lost(noetl: NoetlCommand, execution: dict[str, Any]) -> None:
    shown = run_at_terminal(noetl, "exec", "logs", execution["id"]).decode()
    assert "shows | \\x1b[2J" in shown
    assert "real\\x0dFAKE" in shown
    told = noetl("result", "show", execution["id"], "shows", "--json")
    assert HOSTILE in json.dumps(told.json, ensure_ascii=False) or told.json[0]["text"] == HOSTILE

"""Results as users have them: looked at, saved, traced; and a search for the secrets that went through them."""

import base64
import csv
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pyarrow.parquet as pq

from noetl.embedded import EmbeddedPostgres
from tests.integration.cli.test_credentials import dump, read_logs, store_credential
from tests.stack import NoetlCommand, run_stack, write_playbook
from tests.waiting import HANG_LIMIT_S

MANY = 60_000
STEPS = f"""  - step: fetch
    tool:
      kind: python
      code: "result = [{{'id': n, 'name': str(n) * 9, 'ok': True}} for n in range({MANY})]"
      output: {{store: disk}}
    next: total
  - step: total
    tool:
      kind: python
      code: "result = {{'sum': sum(row['id'] for row in rows), 'of': size}}"
      input: {{rows: "{{{{ fetch.rows[:10] }}}}", size: "{{{{ fetch | length }}}}"}}
      provenance: {{checked: "yes"}}
    next: each
  - step: each
    loop: {{in: "{{{{ fetch.rows[:3] }}}}", iterator: row}}
    tool: {{kind: python, code: "result = {{'n': n, 'l': [n]}}", input: {{n: "{{{{ row.id }}}}"}}}}
"""


def looks(client: NoetlCommand, folder: Path) -> None:
    """The same commands, with and without a server."""
    shown = client("result", "show", "@latest", "fetch")
    assert shown.code == 0, shown.err
    assert shown.out.splitlines()[0].split() == ["id", "name", "ok"]
    assert f"{MANY} rows" in shown.out
    assert client.json("result", "show", "@latest", "total") == {"sum": 45, "of": MANY}
    assert len(client.json("result", "show", "@latest", "fetch")) == MANY
    assert client.json("result", "show", "@latest", "each") == [
        {"n": n, "l": [n]} for n in range(3)
    ]

    kept = client("result", "get", "@latest", "fetch", "-o", folder / "kept.parquet")
    assert kept.code == 0, kept.err
    assert pq.read_table(folder / "kept.parquet").num_rows == MANY
    for format in ("parquet", "csv", "json", "jsonl"):
        file = folder / f"some.{format}"
        done = client("result", "export", "@latest", "fetch", "-o", file, "--rows", "10:13")
        assert done.code == 0, done.err
        assert [row["id"] for row in rows_of(file)] == [10, 11, 12]
    for stdout in ([], ["-o", "-"]):
        printed = client("result", "export", "@latest", "each", "--format", "csv", *stdout)
        assert printed.out == "n,l\n0,[0]\n1,[1]\n2,[2]\n"
    for words, arguments in {
        "no rows": ("export", "@latest", "total", "--format", "csv"),
        "there is no format 'xml'": ("export", "@latest", "fetch", "--format", "xml"),
        ".parquet, .csv, .json, .jsonl": ("export", "@latest", "fetch", "-o", folder / "foo.xyz"),
        "not a range of rows": ("export", "@latest", "fetch", "--rows", "a:b"),
        "'nope' has no result": ("get", "@latest", "nope"),
        "cannot write": ("get", "@latest", "total", "-o", folder / "none" / "x.json"),
    }.items():
        refused = client("result", *arguments)
        assert (refused.code, refused.out) == (2, ""), words
        assert words in refused.err

    trace = client.json("trace", "@latest", "total")
    assert [(node["step"], node["tool"]["kind"]) for node in trace["nodes"]] == [
        ("total", "python"),
        ("fetch", "python"),
    ]
    assert trace["nodes"][0]["provenance"] == {"checked": "yes"}
    told = client("trace", "@latest", "total").out.splitlines()
    assert told[0].split() == ["total", "ok"]
    assert told[1].startswith("└─ total.task_0  python")
    assert told[2].startswith("   └─ input fetch.task_0  python")
    assert (
        "fetch"
        not in client("trace", "@latest", "total", "--depth", 0, "--json").json["nodes"][0]["uri"]
    )
    assert sorted(path.name for path in folder.iterdir() if path.name.startswith(".")) == []


def rows_of(file: Path) -> list[dict[str, Any]]:
    match file.suffix:
        case ".parquet":
            return list(pq.read_table(file).to_pylist())
        case ".csv":
            return [{**row, "id": int(row["id"])} for row in csv.DictReader(file.open())]
        case ".json":
            return list(json.loads(file.read_text()))
        case _:
            return [json.loads(line) for line in file.read_text().splitlines()]


def test_results_are_looked_at_saved_and_traced(noetl: NoetlCommand, tmp_path: Path) -> None:
    assert noetl.json("run", write_playbook(tmp_path, "makes", STEPS))["status"] == "completed"
    (tmp_path / "here").mkdir()
    looks(noetl, tmp_path / "here")
    with run_stack(noetl) as stack:
        (tmp_path / "there").mkdir()
        elsewhere = NoetlCommand(tmp_path / "elsewhere").with_env(
            NOETL_SERVER_URL=stack.url, NOETL_TOKEN=noetl.token
        )
        looks(elsewhere, tmp_path / "there")


# ---- secrets -------------------------------------------------------------------------------------------------------------

CANARY, NUMBER = 'canary-77fe"é&0d41c9', 83_120_457_716
FORMS = {
    CANARY,
    quote(CANARY, safe=""),
    json.dumps(CANARY)[1:-1],
    json.dumps(CANARY, ensure_ascii=False)[1:-1],
    base64.b64encode(CANARY.encode()).decode().rstrip("="),
    "canary-77fe",
    str(NUMBER),
}
KEYCHAIN = "keychain: [{name: api, kind: credential, credential: tokens}]\nworkflow:"
TOKEN = 't: "{{ keychain.api.token }}"'
PLANTED = f"""  - step: small
    tool:
      kind: python
      code: "print('got', t)\\nresult = {{'next_page_token': 'page-2', 'said': t, 'deep': [{{'x': 'a' + t}}]}}"
      input: {{{TOKEN}}}
      provenance: {{by: "{{{{ keychain.api.token }}}}"}}
    set: {{ctx.page: "{{{{ small.next_page_token }}}}", ctx.said: "{{{{ small.said }}}}"}}
    next: large
  - step: large
    tool:
      kind: python
      code: |
        rows = [{{'id': n, 'text': t, 'next_page_token': 'p'}} for n in range(400)]
        result = {{'next_page_token': 'page-3', 'rows': rows, 'text': t * 9000}}
      input: {{{TOKEN}, more: ["{{{{ keychain.api.token }}}}"], next_page_token: page-2, filler: "{{{{ 'x' * 70000 }}}}"}}
      output: {{store: disk}}
    next: table
  - step: table
    tool:
      kind: python
      code: "result = [{{'id': n, 'text': t, 'pin': pin, 'next_page_token': 'p'}} for n in range(70000)]"
      input: {{{TOKEN}, pin: "{{{{ keychain.api.pin }}}}"}}
    next: each
  - step: each
    loop: {{in: [1, 2, 3], iterator: n, spec: {{policy: {{failure: best_effort}}}}}}
    tool: {{kind: python, code: "result = t\\nif n == 2: raise ValueError(t)", input: {{{TOKEN}, n: "{{{{ n }}}}"}}}}
    next: fails
  - step: fails
    tool:
      kind: python
      code: "import sys\\nprint(t, file=sys.stderr)\\nraise ValueError('no ' + t)"
      input: {{{TOKEN}, list: ["{{{{ keychain.api.token }}}}"]}}
"""


def test_planted_secrets_are_in_no_table_file_log_preview_or_trace(
    tmp_path: Path,
) -> None:
    noetl = NoetlCommand(tmp_path / "home")
    file = write_playbook(tmp_path, "planted", PLANTED)
    file.write_text(file.read_text().replace("workflow:", KEYCHAIN))
    found: dict[str, bytes] = {}
    embedded = EmbeddedPostgres(noetl.home)
    dsns = embedded.ensure_postgres()
    try:
        with run_stack(noetl.with_env(NOETL_LOG_LEVEL="debug"), workers=1) as stack:
            client = noetl.with_env(NOETL_SERVER_URL=stack.url)
            fields = {"token": CANARY, "pin": str(NUMBER)}
            assert store_credential(client, "tokens", "generic", **fields).code == 0
            said = client("run", file, "--json")
            place = f"{stack.url}/api/executions/{said.json['execution_id']}"
            looked = [
                httpx.get(
                    f"{place}/{what}",
                    headers=noetl.token_header,
                    trust_env=False,
                    timeout=HANG_LIMIT_S,
                )
                for step in ("small", "large", "table", "each", "fails")
                for what in (f"result/{step}?rows=5", f"trace/{step}", f"result/{step}/data")
            ]
        found.update(read_logs(stack))
    finally:
        found["database"] = b"".join(dump(dsns.control))
        embedded.stop_postgres()
    assert said.code == 1, said.err
    assert "no ***tokens.token***" in said.json["error"]["message"]
    assert said.json["ctx"]["page"] == "page-2"
    statuses = [answer.status_code for answer in looked]
    assert statuses == [200] * 14 + [404], [
        answer.text[:300] for answer in looked
    ]  # a step that failed has no data
    assert "no ***tokens.token***" in looked[14].json()["detail"]
    small, large = looked[0].json(), looked[3].json()
    assert (
        small["preview"]["value"]["next_page_token"]
        == small["context"]["next_page_token"]
        == "page-2"
    )
    assert large["context"]["next_page_token"] == "page-3"
    assert small["meta"]["input"] == {"value": {"t": "***tokens.token***"}}
    assert small["meta"]["provenance"] == {"by": "***tokens.token***"}
    assert large["meta"]["input"].keys() == {"ref"}
    assert looked[6].json()["preview"]["rows"][0] == {
        "id": 0, "text": "***tokens.token***", "pin": "***tokens.pin***", "next_page_token": "p",
    }  # fmt: skip
    found["answers"] = b"".join(answer.content for answer in looked)
    found["output"] = f"{said.out}{said.err}".encode()
    files = [each for each in noetl.home.rglob("*") if each.is_file()]
    found["home"] = b"".join(each.read_bytes() for each in files)
    kept = b"".join(
        each.read_bytes() for each in files if each.is_relative_to(noetl.home / "results")
    )
    assert b"***tokens.token***" in kept
    assert b"***tokens.token***" in found["database"]
    for where, content in found.items():
        assert content, where
        for form in FORMS:
            assert form.encode() not in content, where

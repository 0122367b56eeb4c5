"""Cursor loops on a real queue table: every claimed row has one result and is stored once."""

import re
import textwrap
from pathlib import Path

import pytest

from tests.stack import NoetlCommand

QUEUE = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: drain, path: test/drain_{claim}_{lanes}}}
workflow:
  - step: make
    tool:
      kind: postgres
      auth: local
      query:
        - drop table if exists job, job_done
        - create table job (id int primary key, claimed bool not null default false)
        - create table job_done (id int, square int)
        - insert into job select generate_series(1, 20)
    next: drain
  - step: drain
    loop:
      iterator: row
      cursor:
        kind: postgres
        auth: local
        claim: |
          with taken as (
            update job set claimed = true
            where id in (select id from job where not claimed order by id limit {claim} for update skip locked)
            returning id)
          select id from taken order by id
      spec: {{mode: cursor, max_in_flight: {lanes}, frame: {{size: 5}}}}
    tool:
      - {{name: square, kind: python, input: {{id: "{{{{ row.id }}}}"}}, code: "result = {{'id': id, 'square': id * id}}"}}
      - {{name: keep, kind: sink, target: {{kind: postgres, auth: local, table: job_done}}}}
    next: stored
  - step: stored
    tool: {{kind: postgres, auth: local, query: "select id, square from job_done order by id"}}
    next: both
  - step: both
    tool:
      kind: python
      input: {{loop: "{{{{ drain.rows }}}}", table: "{{{{ stored.rows }}}}"}}
      code: "result = {{'loop': loop, 'table': table}}"
"""
WANTED = [{"id": number, "square": number * number} for number in range(1, 21)]


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("claim", [1, 3, 5, 8])
def test_cursor_loop_has_one_result_per_claimed_row(
    noetl: NoetlCommand, tmp_path: Path, claim: int, lanes: int
) -> None:
    file = tmp_path / "drain.yaml"
    file.write_text(QUEUE.format(claim=claim, lanes=lanes))
    found = noetl.json("run", str(file))["result"]
    assert found["table"] == WANTED
    if lanes == 1:
        assert found["loop"] == WANTED
    assert sorted(found["loop"], key=lambda row: row["id"]) == WANTED


CLAIM_WITHOUT_ROWS = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: no_rows, path: test/no_rows}
workflow:
  - step: make
    tool: {kind: postgres, auth: local, query: "create table claimed_by (id int); insert into claimed_by values (1)"}
    next: drain
  - step: drain
    loop:
      iterator: row
      cursor:
        kind: postgres
        auth: local
        claim: "with gone as (delete from claimed_by returning id) insert into claimed_by select id + 1 from gone"
      spec: {mode: cursor}
    tool: {kind: noop}
"""


def test_cursor_loop_fails_when_its_claim_returns_no_columns(
    noetl: NoetlCommand, tmp_path: Path
) -> None:
    file = tmp_path / "no_rows.yaml"
    file.write_text(CLAIM_WITHOUT_ROWS)
    ended = noetl("run", str(file))
    assert ended.code == 1
    assert "CLAIM_INVALID" in ended.out + ended.err


STRANDED = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: stranded, path: test/stranded}
workflow:
  - step: make
    tool:
      kind: postgres
      auth: local
      query: |
        create table order_queue (id int primary key, amount int, status text, claimed_at timestamptz);
        insert into order_queue values (1, 10, 'pending', null), (2, 20, 'claimed', now() - interval '2 hours'),
                                       (3, 30, 'claimed', now()), (4, 40, 'done', now() - interval '2 hours')
    next: drain
  - step: drain
    loop:
      iterator: row
      CURSOR
      spec: {mode: cursor, frame: 10}
    tool: {kind: noop, input: {id: "{{ row.id }}"}}
"""


def documented_claim() -> str:
    text = Path("docs/playbook.md").read_text()
    found = re.search(r"```yaml\n(cursor:\n.*?)```", text, re.DOTALL)
    assert found is not None
    return textwrap.indent(found[1], "      ").strip()


def test_documented_claim_takes_rows_again_whose_worker_died_before_the_claim_was_recorded(
    noetl: NoetlCommand, tmp_path: Path
) -> None:
    file = tmp_path / "stranded.yaml"
    file.write_text(STRANDED.replace("CURSOR", documented_claim()))
    said = noetl.json("run", str(file))
    assert [row["id"] for row in said["result"]] == [1, 2]

"""`noetl` with an object store for large results."""

from pathlib import Path

from tests import s3
from tests.stack import NoetlCommand, write_playbook

LARGE = """\
  - step: many
    tool:
      kind: python
      code: |
        from hashlib import sha512
        result = [{"n": n, "text": sha512(b"%d" % n).hexdigest()} for n in range(30_000)]
    next: one
  - step: one
    tool: {kind: python, input: {n: "{{ many[20_000].n }}"}, code: "result = n"}
"""


def test_large_results_are_in_the_store_and_read_from_there(
    noetl: NoetlCommand, tmp_path: Path
) -> None:
    settings = s3.server().settings(s3.server().place())
    here = noetl.with_env(**settings)
    said = here.json("run", write_playbook(tmp_path, "large", LARGE))
    assert (said["status"], said["result"]) == ("completed", 20_000)
    elsewhere = noetl.with_env(
        **settings, NOETL_STORAGE_LOCAL_CACHE_DIR=str(tmp_path / "another machine")
    )
    assert len(elsewhere.json("result", "show", said["execution_id"], "many")) == 30_000
    assert {finding["check"]: finding["status"] for finding in here.json("doctor")}[
        "storage"
    ] == "ok"


def test_a_store_that_refuses_is_said(noetl: NoetlCommand, tmp_path: Path) -> None:
    settings = s3.server().settings(s3.server().place()) | {"AWS_SECRET_ACCESS_KEY": "wrong"}
    here = noetl.with_env(**settings)
    said = here.json("run", write_playbook(tmp_path, "refused", LARGE), code=1)
    assert said["error"]["code"] == "REFERENCE_NOT_AVAILABLE"
    assert "403 Forbidden" in said["error"]["message"]
    found = {finding["check"]: finding for finding in here.json("doctor", code=1)}["storage"]
    assert (found["status"], "NOETL_STORAGE_*" in found["do"]) == ("error", True)

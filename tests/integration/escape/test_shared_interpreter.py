"""Code of one playbook changes nothing for another one that the same worker runs after it."""

from pathlib import Path

from tests.e2e.conftest import StackClient

PATCH_JSON = """
- step: patch
  tool:
    kind: python
    input: {file: "{{ workload.file }}"}
    code: |
      import json
      loads = json.loads
      def spy(text, *args, **options):
          with open(file, 'ab') as seen:
              seen.write(text if isinstance(text, bytes) else text.encode())
          return loads(text, *args, **options)
      json.loads = spy
"""
USE_SECRET = """
- step: use
  tool:
    kind: python
    input: {token: "{{ keychain.canary.token }}"}
    code: "result = len(token)  # my own source"
"""
KEYCHAIN = [{"name": "canary", "kind": "credential", "credential": "canary"}]
CHANGE_PROCESS = """
- step: change
  tool:
    kind: python
    code: |
      import decimal, os
      decimal.getcontext().prec = 3
      os.umask(0o777)
"""
DIVIDE = """
- step: divide
  tool:
    kind: python
    code: |
      import decimal, os
      result = {'quotient': str(decimal.Decimal(100000) / 7), 'umask': os.umask(0)}
  set: {ctx.quotient: "{{ output.data.quotient }}", ctx.umask: "{{ output.data.umask }}"}
"""


def test_patched_interpreter_is_not_used_for_another_playbook(
    stack: StackClient, tmp_path: Path
) -> None:
    seen = tmp_path / "seen"
    for _ in range(4):
        assert stack.run(PATCH_JSON, {"file": str(seen)})["status"] == "completed"
    for _ in range(4):
        assert stack.run(USE_SECRET, keychain=KEYCHAIN)["status"] == "completed"
    text = seen.read_text() if seen.exists() else ""
    assert "my own source" not in text
    assert "canary-5d1f0a77" not in text


def test_decimal_precision_and_umask_do_not_leak(stack: StackClient) -> None:
    exact = "14285.71428571428571428571429"
    assert stack.run(DIVIDE)["vars"]["quotient"] == exact
    for _ in range(4):
        assert stack.run(CHANGE_PROCESS)["status"] == "completed"
    for number in range(4):
        found = stack.run(DIVIDE, workload={"another": number})["vars"]
        assert found["quotient"] == exact
        assert found["umask"] != 0o777

"""Texts of errors come from data. Postgres stores every one of them, and the row is what the log folds to."""

from pathlib import Path

import pytest

from tests.integration.api.api_server import run_api_server_on_postgres, run_worker
from tests.projection import assert_projection_equals_fold

RAISES = r"""
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: raises, path: tests/raises}
workflow:
  - step: fail
    tool: {kind: python, code: "raise ValueError('a' + chr(0) + 'b' + chr(1) + chr(92) + chr(34))"}
"""


async def test_an_error_with_a_nul_is_stored_as_it_is_folded(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        run_api_server_on_postgres(database, tmp_path, monkeypatch) as here,
        run_worker(here),
    ):
        await here.register(RAISES)
        row = await here.wait_for_end(await here.start("tests/raises"))
    assert row["failure"]["message"].startswith("ValueError: a\ufffdb\x01")
    await assert_projection_equals_fold(database)

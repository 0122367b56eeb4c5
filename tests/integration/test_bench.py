"""The benchmarks run, small: their own checks hold, and they say what they promise. No time is asked for."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SMALL = "--repeat 1 --steps 3 --executions 4 --short 2 --items 40 --listed 200 --idle 0.1 --limit 0.1".split()
PROMISED = {
    "s1_ms", "s2_steps_s", "s3_items_s", "s5_first_s", "s5_rss_mb", "s6_done_s", "s6_repeated", "commit_ms", "group_commit_s",
    "child_call_s",
}  # fmt: skip


@pytest.mark.parametrize("mode", ["embedded", "http"])
def test_the_benchmark_of_the_core_checks_what_it_runs(mode: str) -> None:
    done = subprocess.run(
        [sys.executable, "bench/core.py", "--json", "--mode", mode, *SMALL], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert list(found) == [mode]
    assert found[mode].keys() >= PROMISED
    for scenario in ("s1", "s2", "s3"):
        assert found[mode][scenario].keys() >= {"commits", "events", "wal_bytes", "cpu_us"}
    assert found[mode]["s1"]["events"] >= 6


def test_the_benchmark_of_the_data_plane_checks_what_it_runs() -> None:
    done = subprocess.run(
        [sys.executable, "bench/data.py", "--json", "--rows", "200000"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["rows"] == 200_000
    assert found.keys() >= {"rows_s", "bare_rows_s", "worker_peak_mb", "server_growth_mb", "database_growth_mb"}
    assert found["database_growth_mb"] < 1

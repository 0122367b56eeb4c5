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


@pytest.mark.parametrize("mode", ["embedded", pytest.param("http", marks=pytest.mark.long)])
def test_the_benchmark_of_the_core_checks_what_it_runs(mode: str) -> None:
    done = subprocess.run(
        [sys.executable, "bench/core.py", "--json", "--mode", mode, *SMALL],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert list(found) == [mode]
    assert found[mode].keys() >= PROMISED
    for scenario in ("s1", "s2", "s3"):
        assert found[mode][scenario].keys() >= {"commits", "events", "wal_bytes", "cpu_us"}
    assert found[mode]["s1"]["events"] >= 6


def test_the_benchmark_from_outside_checks_what_it_runs() -> None:
    done = subprocess.run(
        [sys.executable, "bench/blackbox.py", "--json", *"--only S1,S5 --runs 1 --steps 3".split(),
         *"--systems dev,processes --idle 0.1 --settle 0.01 --limit 0.1".split()],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (run,) = json.loads(done.stdout)["runs"]
    assert list(run) == ["dev", "processes"]
    for figures in run.values():
        assert figures.keys() >= {"S1", "S5", "memory_mb", "idle_percent"}
        assert all(each["seconds"] > 0 for each in figures["S1"])
        assert figures["S1"][0].keys() >= {"commits", "wal_bytes", "cpu_us", "busy_cores"}


def test_the_benchmark_of_the_data_plane_checks_what_it_runs() -> None:
    done = subprocess.run(
        [sys.executable, "bench/data.py", "--json", "--rows", "200000"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["rows"] == 200_000
    assert found.keys() >= {
        "rows_s",
        "bare_rows_s",
        "worker_peak_mb",
        "server_growth_mb",
        "database_growth_mb",
    }
    assert found["database_growth_mb"] < 1


@pytest.mark.parametrize(
    ("shape", "rows"),
    [
        ("A", {"assessments": 63, "conditions": 39, "medications": 50, "mds_details": 20}),
        pytest.param(
            "C",
            {"assessments": 20, "conditions": 20, "medications": 20, "mds_details": 0},
            marks=pytest.mark.long,
        ),
    ],
)
def test_the_patient_flow_is_exact(shape: str, rows: dict[str, int]) -> None:
    done = subprocess.run(
        [sys.executable, "bench/patients.py", shape, "--facilities", "1", "--patients", "20", "--json"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["rows"] == {**rows, "vital_signs": 20, "demographics": 20}
    assert (found["duplicates"], found["http_calls"]) == (0, {"A": 6, "C": 100}[shape])
    assert found.keys() >= {
        "seconds",
        "events_s",
        "event_bytes_p99",
        "dispatch_ms",
        "database_mb",
        "peak_rss_mb",
    }


def test_the_trace_of_a_step_has_every_way() -> None:
    done = subprocess.run(
        [sys.executable, "bench/trace.py", "--json", "--steps", "8"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found["ways_ms"]) == 12
    assert all(milliseconds > 0 for milliseconds in found["ways_ms"].values())


def test_the_benchmark_of_jobs_checks_what_it_runs() -> None:
    done = subprocess.run(
        [sys.executable, "bench/jobs.py", "--executions", "20", "--length", "4", "--profile", "none", "--json"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["executions"], found["partitions_dropped"]) == (20, 1)
    assert found.keys() >= {
        "export_events_s",
        "rebuild_events_s",
        "compact_events_s",
        "verify_events_s",
        "cold_bytes",
    }


def test_the_benchmark_of_growth_checks_what_it_runs() -> None:
    sizes = "--executions 700 --events-each 20 --rounds 1 --warming 0 --at-once 120".split()
    done = subprocess.run(
        [sys.executable, "bench/grown.py", "--json", "--only", "S1,S2,pages", *sizes],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["log"]["executions"] == 700
    assert found["log"]["events"] >= 700 * 20
    kinds = ("first", "second", "by status", "by path", "old, by path", "status of none", "path of none")  # fmt: skip
    pages = {f"page: {kind}" for kind in kinds}
    assert found["ratios"].keys() == {"S1", "S2", *pages}
    assert all(ratio["median"] > 0 for ratio in found["ratios"].values())
    assert found["samples"].keys() == {"empty", "grown"}

"""What is said of a job while it runs."""

from dataclasses import dataclass

import pytest

from noetl.spark.client.progress import (
    SPARK_PROGRESS_INTERVAL_S,
    ProgressMetrics,
    describe_progress,
)


@dataclass
class Stage:
    """As Spark Connect tells of one."""

    num_tasks: int
    num_completed_tasks: int
    num_bytes_read: int = 0
    done: bool = False


@pytest.mark.parametrize(
    ("stages", "said"),
    [
        ([Stage(48, 12)], "12/48 tasks"),
        ([Stage(4, 4, 1_200, done=True), Stage(8, 3)], "7/12 tasks, stage 2/2, 1 KB read"),
        ([Stage(4, 4, done=True), Stage(8, 8, done=True)], "12/12 tasks, stage 2/2"),
        ([Stage(1, 0, 2_340_000_000)], "0/1 tasks, 2.3 GB read"),
    ],
)
def test_progress_is_told_in_a_few_words(stages: list[Stage], said: str) -> None:
    assert describe_progress(stages) == said


def test_a_line_now_and_then_and_the_sums_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    now, said = [100.0], list[str]()
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    metrics = ProgressMetrics(said.append)
    for over in range(4):
        metrics([Stage(4, over, 10)], 1, "op", False)
        now[0] += SPARK_PROGRESS_INTERVAL_S / 2
    metrics(None, 0, "op", False)
    metrics([Stage(4, 4, 10)], 0, "op", True)
    assert said == ["0/4 tasks, 10 B read", "2/4 tasks, 10 B read"]
    assert metrics.make_sums() == {"stages": 1, "tasks": 4, "bytes_read": 10, "operation": "op"}


def test_whoever_is_told_may_be_gone() -> None:
    def raise_broken_pipe(said: str) -> None:
        raise BrokenPipeError

    ProgressMetrics(raise_broken_pipe)([Stage(4, 1)], 1, "op", False)
    ProgressMetrics(raise_broken_pipe)([object()], 1, "op", False)

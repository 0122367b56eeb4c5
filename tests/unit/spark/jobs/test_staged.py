"""Events as files: an execution is in one of them, however its rows come."""

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from noetl.spark.jobs import event_files
from noetl.spark.jobs.event_files import write_event_files
from tests.unit.spark.jobs.test_rows import batch, event


@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=8),
    cuts=st.lists(st.integers(1, 5), min_size=1, max_size=20),
)
def test_no_execution_is_cut_in_two(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], cuts: list[int]
) -> None:
    rows = [
        event(execution_id=number, seq=seq)
        for number, size in enumerate(sizes)
        for seq in range(size)
    ]
    batches, start = [], 0
    for cut in [*cuts, len(rows)]:
        batches.append(batch(*rows[start : start + cut]))
        start += cut
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(event_files, "MAX_TASK_EVENTS", 4)
        files = write_event_files(iter(batches), tmp_path_factory.mktemp("work"), "hot")
    held = [pq.read_table(file).column("execution_id").to_pylist() for file in files]
    assert [each for found in held for each in found] == [row["execution_id"] for row in rows]
    assert sum(len(set(found)) for found in held) == len(sizes)
    assert all(len(found) >= 4 for found in held[:-1])

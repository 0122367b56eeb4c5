"""Fields of Spark outputs and expectations."""

import pytest

from noetl.playbook.findings import Code
from noetl.playbook.model import SinkTask, SparkTask
from noetl.playbook.validation import load, load_or_raise
from tests.play import workflow


def spark(more: str) -> str:
    return workflow(f"- step: s\n  tool: {{kind: spark, sql: select 1, {more}}}")


@pytest.mark.parametrize("written", ["day", "[day]"])
def test_one_column_may_be_written_without_a_list(written: str) -> None:
    (task,) = (
        load_or_raise(spark(f"output: {{path: /x, partition_by: {written}}}")).workflow[0].tool
    )
    assert isinstance(task, SparkTask)
    assert task.output.partition_by == task.config["output"]["partition_by"] == ["day"]
    table = spark(f"output: {{kind: postgres, auth: pg, table: t, mode: upsert, key: {written}}}")
    (task,) = load_or_raise(table).workflow[0].tool
    assert isinstance(task, SparkTask)
    assert task.output.key == task.config["output"]["key"] == ["day"]
    text = workflow(
        f"- step: s\n  tool: {{kind: sink, data: [], target: {{kind: postgres, table: t, mode: upsert, key: {written}}}}}"
    )
    (sink,) = load_or_raise(text).workflow[0].tool
    assert isinstance(sink, SinkTask)
    assert sink.target.key == ["day"]


@pytest.mark.parametrize("word", ["fail", "drop", "warn"])
def test_known_words_of_on_fail(word: str) -> None:
    assert load(spark(f"expect: [{{sql: a > 0, on_fail: {word}}}]")).errors == []


@pytest.mark.parametrize(
    ("check", "code", "hint"),
    [
        ("{sql: a > 0, on_fail: wran}", Code.BAD_VALUE, "did you mean `warn`?"),
        ("{sql: a > 0, on_fail: explode}", Code.BAD_VALUE, "one of fail, drop, warn"),
        ("{sql: a > 0, on_fail: '{{ workload.x }}'}", Code.BAD_VALUE, "one of fail, drop, warn"),
        ("{sql: a > 0, onfail: warn}", Code.UNKNOWN_KEY, "did you mean `on_fail`?"),
        ("{name: a}", Code.MISSING_FIELD, None),
    ],
)
def test_an_expectation_that_makes_no_sense_is_refused(
    check: str, code: Code, hint: str | None
) -> None:
    (finding,) = load(spark(f"expect: [{check}]")).errors
    assert (finding.code, finding.hint) == (code, hint)

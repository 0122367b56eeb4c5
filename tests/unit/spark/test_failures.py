"""What Spark raises, in the words of a failure."""

import pytest
from pyspark.errors import PySparkException

from noetl.spark.client.failures import make_spark_failure

ABORTED = (
    "Job aborted due to stage failure: Task 0 in stage 4.0 failed 1 times, most recent failure: Lost task 0.0 in stage 4.0 "
    "(TID 7) (localhost executor driver): org.apache.spark.SparkException: "
)
FRAMES = "\n\tat org.apache.spark.api.python.Runner.read(PythonRunner.scala:1136)\n\tat java.base/java.lang.Thread.run()"


@pytest.mark.parametrize(
    ("said", "code", "message"),
    [
        (
            "[UNRESOLVED_COLUMN] A column `amont` cannot be resolved. SQLSTATE: 42703; line 1 pos 7;\n'Project ['amont]\n+- View",
            "SPARK_ERROR",
            "[UNRESOLVED_COLUMN] A column `amont` cannot be resolved. SQLSTATE: 42703; line 1 pos 7",
        ),
        (
            "[PARSE_SYNTAX_ERROR] Syntax error at 'selec'. SQLSTATE: 42601 (line 1, pos 0)\n\n== SQL ==\nselec 1\n^^^",
            "SPARK_ERROR",
            "[PARSE_SYNTAX_ERROR] Syntax error at 'selec'. SQLSTATE: 42601 (line 1, pos 0)\n\n== SQL ==\nselec 1\n^^^",
        ),
        (
            f"{ABORTED}Disk quota exceeded{FRAMES}",
            "SPARK_ERROR",
            "in a Spark task: Disk quota exceeded",
        ),
        (
            '(org.apache.hadoop.fs.UnsupportedFileSystemException) No FileSystem for scheme "s3"',
            "SPARK_ERROR",
            'No FileSystem for scheme "s3"; this Spark cannot reach such a store: give a result, which goes to ours by itself,'
            " or use a profile that can",
        ),
        (
            "(java.io.IOException) Mkdirs failed to create file:/proc/x (exists=false)",
            "SPARK_ERROR",
            "Mkdirs failed to create file:/proc/x (exists=false)",
        ),
        (
            "org.apache.spark.memory.SparkOutOfMemoryError: [UNABLE_TO_ACQUIRE_MEMORY] no memory",
            "SPARK_OUT_OF_MEMORY",
            "out of memory in a Spark task: org.apache.spark.memory.SparkOutOfMemoryError: [UNABLE_TO_ACQUIRE_MEMORY] no memory",
        ),
        (
            f"{ABORTED}Python worker exited unexpectedly (crashed).{FRAMES}",
            "TOOL_CRASHED",
            "in a Spark task: its Python process ended without a word; it may have taken more memory than there is",
        ),
        (
            '[CAST_INVALID_INPUT] no number. SQLSTATE: 22018\n== DataFrame ==\n"cast" was called from\n'
            "/at/noetl/spark/child.py:167",
            "SPARK_ERROR",
            "[CAST_INVALID_INPUT] no number. SQLSTATE: 22018",
        ),
        (
            '[USER_RAISED_EXCEPTION] noetl: input t: column n: 1.5; cast it SQLSTATE: P0001\n== DataFrame ==\n"when" was',
            "SPARK_INPUT",
            "input t: column n: 1.5; cast it",
        ),
    ],
    ids=["plan", "syntax", "frames", "store", "folder", "memory", "crash", "ours", "input"],
)
def test_a_message_has_the_cause_and_no_more(said: str, code: str, message: str) -> None:
    found = make_spark_failure(PySparkException(said))
    assert (found.code, found.message) == (code, message)

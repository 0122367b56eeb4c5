"""The JSON maps that pass between the worker, the client processes and Spark's tasks."""

from typing import Any

# Worker to client process. `op` is `run` or `release`. A run has `sql`, `code` or `loop`, and
# `inputs`, `output`, `expect`, `conf`, `session` and `folder`.
SparkRequest = dict[str, Any]

# Client process to worker: `value`, `frames` by name, or `error`, and `spark` with its metrics.
SparkAnswer = dict[str, Any]

# A frame of an answer: `columns`, `files`, `expect` with counts of failed rows, and `path` and
# `rows` if the step writes to a path.
FrameManifest = dict[str, Any]

# A file of a frame: `path`, `rows`, `bytes` and `sha256`.
FileFacts = dict[str, Any]

# How Spark reads an input: `table`, or `format`, `paths`, `options`, `schema` and `columns`.
InputSpec = dict[str, Any]

# Where a step writes: `path` with `format`, `options`, `mode` and `partition_by`, or a table.
OutputSpec = dict[str, Any]

# A check of `expect`: `name`, `sql`, its `values` and `on_fail`.
CheckSpec = dict[str, Any]

# What the tasks of a loop get: the plan, the command, the items and how they are divided.
LoopWork = dict[str, Any]

# Shard to client process: `file`, `items` as they ended, and `provenance`.
ShardReport = dict[str, Any]

# The fields of a `Failure`.
FailureFields = dict[str, Any]

# A question of a task to its worker.
TicketQuestion = dict[str, Any]

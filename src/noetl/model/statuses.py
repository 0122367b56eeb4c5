"""The statuses that people see of an execution."""

STATUSES = (
    "pending",
    "running",
    "paused",
    "cancelling",
    "quarantined",
    "completed",
    "failed",
    "cancelled",
)

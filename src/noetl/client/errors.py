"""Errors that only a client raises. The others are those of `noetl.model.errors`."""

from noetl.model.errors import NoetlError


class ExecutionFailed(NoetlError):
    """An execution has failed, was cancelled, or was put into quarantine."""

    code = "EXECUTION_FAILED"
    execution_id: str
    status: str
    step: str | None  # where it failed
    failure_code: str | None


class WaitTimeout(NoetlError, TimeoutError):
    """An execution has not ended within the time that the caller waits. It goes on."""

    code = "WAIT_TIMEOUT"
    execution_id: str

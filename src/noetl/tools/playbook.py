"""`playbook`: starts a child execution. The task waits for its end without a worker.

With `wait: false` the task waits for the start only.
"""

from noetl.model.errors import Failure
from noetl.model.events import ChildRequest
from noetl.tools.port import Call, Failed, Suspend


class PlaybookTool:
    kind = "playbook"

    async def run(self, call: Call) -> Suspend | Failed:
        path = call.config.get("path")
        version = call.config.get("version")
        if not isinstance(path, str) or not path:
            message = f"path is {path!r}, not the path of a playbook"
            return Failed(Failure(code="PLAYBOOK_PATH", kind="config", message=message))
        request = ChildRequest(
            path=path,
            version=None if version is None else str(version),
            workload=call.input,
            return_step=call.config.get("return_step"),
            wait=bool(call.config.get("wait", True)),
        )
        return Suspend("child", child=request, timeout=call.timeout)

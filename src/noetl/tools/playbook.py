"""`playbook`: a child execution. The task waits for its end without a worker; `wait: false` only for its start."""

from noetl.model.errors import Failure
from noetl.model.events import ChildRequest
from noetl.tools.port import Call, Failed, Suspend


class PlaybookTool:
    kind = "playbook"

    async def run(self, call: Call) -> Suspend | Failed:
        path, version = call.config.get("path"), call.config.get("version")
        if not isinstance(path, str) or not path:
            return Failed(
                Failure(
                    code="PLAYBOOK_PATH",
                    kind="config",
                    message=f"path is {path!r}, not the path of a playbook",
                )
            )
        request = ChildRequest(
            path=path,
            version=None if version is None else str(version),
            workload=call.input,
            return_step=call.config.get("return_step"),
            wait=bool(call.config.get("wait", True)),
        )
        return Suspend("child", child=request, timeout=call.timeout)

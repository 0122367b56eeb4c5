"""`noop`: its value is its input, or null when it has none."""

from noetl.tools.port import Call, Success


class Noop:
    kind = "noop"

    async def run(self, call: Call) -> Success:
        return Success(call.input or None)

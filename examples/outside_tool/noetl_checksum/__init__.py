"""`checksum`: the checksum of a file. An example of a tool that comes in a package of its own."""

import asyncio
import hashlib
import threading
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from noetl.tool import Call, Failed, Failure, Outcome, Success

PIECE = 1 << 20


class Config(BaseModel):
    """The fields of a task of this kind. They may be templates, so what is not text yet is checked when it is used."""

    model_config = ConfigDict(extra="forbid")

    path: str
    algorithm: Literal["sha256", "sha1", "md5"] = "sha256"


class Checksum:
    kind = "checksum"
    config = Config

    async def run(self, call: Call) -> Outcome:
        path, algorithm = str(call.config["path"]), str(call.config.get("algorithm", "sha256"))
        stop = threading.Event()
        work = asyncio.ensure_future(asyncio.to_thread(_checksum, Path(path), algorithm, stop))
        try:
            return Success(await asyncio.shield(work))
        except OSError as error:
            return Failed(
                Failure(code="FILE_UNREADABLE", kind="io", message=f"{path}: {error.strerror}")
            )
        except asyncio.CancelledError:
            stop.set()  # a thread cannot be killed: it looks, and this waits until it has seen
            await asyncio.wait([work])
            raise


def _checksum(path: Path, algorithm: str, stop: threading.Event) -> dict[str, Any]:
    digest, size = hashlib.new(algorithm), 0
    with path.open("rb") as file:
        while not stop.is_set() and (piece := file.read(PIECE)):
            digest.update(piece)
            size += len(piece)
    return {"path": str(path), "algorithm": algorithm, "digest": digest.hexdigest(), "bytes": size}

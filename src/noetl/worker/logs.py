"""What tools print: a file per execution and step below home, one JSON line per line printed."""

import json
import logging
import time
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from noetl.tools.port import Log

log = logging.getLogger(__name__)

OPEN = 64  # files at once
SUFFIX = ".jsonl"


class StepLogs:
    """Lines of one process are numbered; several processes may append to one file, a line at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: OrderedDict[tuple[str, str], TextIO] = OrderedDict()
        self._seq = 0

    def __call__(self, execution: str, step: str, task: str) -> Log:
        def write(stream: str, line: str) -> None:
            self._seq += 1
            told = {"seq": self._seq, "at": time.time_ns() // 1000, "task": task, "stream": stream, "line": line}
            try:
                self._file(execution, step).write(json.dumps(told, ensure_ascii=False) + "\n")
            except OSError as error:  # what a tool does is worth more than what it says
                log.warning("step log not written", extra={"step": step, "error": str(error)})

        return write

    def close(self) -> None:
        while self._files:
            _close(self._files.popitem()[1])

    def _file(self, execution: str, step: str) -> TextIO:
        place = (execution, step)
        if place not in self._files:
            path = self._folder / execution / f"{step}{SUFFIX}"
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._files[place] = path.open("a", encoding="utf-8", errors="replace", buffering=1)
        self._files.move_to_end(place)
        while len(self._files) > OPEN:
            _close(self._files.popitem(last=False)[1])
        return self._files[place]


def _close(file: TextIO) -> None:
    try:
        file.close()
    except OSError as error:
        log.warning("step log not closed", extra={"error": str(error)})


def read(folder: Path, execution: str, step: str | None = None) -> Iterator[dict[str, Any]]:
    """Lines by step and in the order they were written."""
    for path in sorted((folder / execution).glob(f"*{SUFFIX}")):
        if step is not None and path.name != f"{step}{SUFFIX}":
            continue
        with path.open(encoding="utf-8") as file:
            for line in file:
                if line.endswith("\n"):  # else it is being written
                    yield {"step": path.name.removesuffix(SUFFIX), **json.loads(line)}

"""What the JVM of a Spark server prints.

Until the server answers, this explains a failed start, so it is kept in the log. Afterwards it is
mostly what functions of steps print, which may hold data: only the last words of the JVM are kept.
"""

import re
import subprocess
from pathlib import Path
from threading import Thread

END_OF_OUTPUT_TIMEOUT_S = 5.0  # seconds; a process that the JVM left behind may hold the pipe
# The JVM says this and ends. Every other fatal error of it has a file `hs_err_pid*.log`.
_LAST_WORDS = re.compile(rb"Terminating due to java\.lang\.OutOfMemoryError: [A-Za-z ]+")


class JvmOutput:
    """Reads the output of a JVM in a thread, and writes what is kept to the log."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self._process = process
        self._log = log
        self._keeps_all = True
        self._reader = Thread(target=self._read_lines, name="jvm-output", daemon=True)
        self._reader.start()

    def stop_keeping(self) -> None:
        """From now on functions of steps may print."""
        self._keeps_all = False

    def wait_for_end(self) -> None:
        """Wait until everything that the ended JVM has printed is read."""
        self._reader.join(END_OF_OUTPUT_TIMEOUT_S)

    def _read_lines(self) -> None:
        output = self._process.stdout
        if output is None:
            return
        with open(self._log, "ab") as log:
            for line in output:
                if self._keeps_all or _LAST_WORDS.fullmatch(line.strip()):
                    log.write(line)
                    log.flush()

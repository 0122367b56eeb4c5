"""Steps of the same user read neither memory nor environment of the worker, the server and the fork server."""

import subprocess
import sys
from pathlib import Path

import httpx

from tests.integration.escape.ordinary_user import as_ordinary_user, make_environment, run_playbook
from tests.processes import free_port
from tests.waiting import HANG_LIMIT_S, until

READ_PROCESS = """
def list_readable(pid):
    found = []
    for name in ("environ", "mem", "maps", "fd/0"):
        path = f"/proc/{pid}/{name}"
        try:
            if name == "fd/0":
                os.readlink(path)
            else:
                with open(path, "rb") as file:
                    if name != "mem":
                        file.read(1)
        except OSError:
            continue
        found.append(name)
    return found
"""
INSPECT_PARENTS = f"""
import os
{READ_PROCESS}
fork_server = os.getppid()
with open(f"/proc/{{fork_server}}/stat") as file:
    worker = int(file.read().rpartition(")")[2].split()[1])
result = {{"worker": list_readable(worker), "fork_server": list_readable(fork_server)}}
"""
STEPS = [{"step": "inspect", "tool": {"kind": "python", "code": INSPECT_PARENTS}}]


def test_step_reads_nothing_of_worker_and_fork_server(ordinary_folder: Path) -> None:
    found = run_playbook(ordinary_folder, STEPS)
    assert found["result"] == {"worker": [], "fork_server": []}


def test_process_of_the_same_user_reads_nothing_of_a_server(ordinary_folder: Path) -> None:
    port = free_port()
    noetl = [sys.executable, "-m", "noetl", "server", "start", "--port", str(port)]
    server = subprocess.Popen(as_ordinary_user(*noetl), env=make_environment(ordinary_folder))
    try:
        until(lambda: is_healthy(port))
        program = f"import os, sys\n{READ_PROCESS}\nprint(list_readable(int(sys.argv[1])))"
        reader = as_ordinary_user(sys.executable, "-c", program, str(server.pid))
        read = subprocess.run(reader, capture_output=True, text=True, check=True)
        assert read.stdout.strip() == "[]"
    finally:
        server.terminate()
        server.wait(HANG_LIMIT_S)


def is_healthy(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False).is_success
    except httpx.TransportError:
        return False

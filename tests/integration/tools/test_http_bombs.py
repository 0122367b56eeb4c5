"""Answers that decode to 1.5 GB: the worker refuses them, names the limit, and stays small."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from noetl.model.errors import InvalidInput
from noetl.tools.credentials.oauth import TokenCache
from noetl.tools.credentials.token_requests import MAX_TOKEN_RESPONSE_BYTES
from noetl.tools.http.tool import MAX_FETCHED_BODY_BYTES
from tests.integration.tools.bombs import BLOCK, BLOCKS, make_bomb, run_bomb_server
from tests.processes import environment
from tests.stack import ROOT, write_playbook
from tests.unit.tools.calls import LOCAL_GUARD, run

# What was decoded before the limit was reached, and what decoding itself takes.
MAX_CALL_MEMORY = MAX_FETCHED_BODY_BYTES + (24 << 20)
MAX_RUN_MEMORY = 400 << 20  # of a whole `noetl run`, most of which is its modules
TOO_LARGE = f"the answer is larger than {MAX_FETCHED_BODY_BYTES} bytes"


@pytest.fixture(scope="module")
def bombs() -> Iterator[str]:
    with run_bomb_server() as url:
        yield url


def measure(url: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.integration.tools.measured_call", url],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("kind", ["bomb", "chunked", "error"])
@pytest.mark.parametrize("encoding", ["gzip", "deflate", "raw deflate"])
def test_a_body_is_decoded_piece_by_piece_under_the_limit(
    bombs: str, kind: str, encoding: str
) -> None:
    assert len(make_bomb(encoding)) < 3 << 20, "a bomb is small"
    found = measure(f"{bombs}/{kind}/{encoding.replace(' ', '+')}")
    assert found["code"] == "RESULT_TOO_LARGE"
    assert TOO_LARGE in found["message"]
    assert found["http_status"] == (500 if kind == "error" else 200)
    assert found["memory"] < MAX_CALL_MEMORY


@pytest.mark.parametrize("kind", ["bomb", "chunked", "error"])
@pytest.mark.parametrize(
    ("encoding", "says"),
    [
        ("gzip, gzip", "encoded 2 times (gzip, gzip); one encoding is accepted"),
        ("zstd", "encoded as 'zstd'; gzip, deflate are accepted"),
    ],
)
def test_other_encodings_are_refused_unread(
    bombs: str, kind: str, encoding: str, says: str
) -> None:
    found = measure(f"{bombs}/{kind}/{encoding.replace(' ', '+')}")
    assert found["code"] == "HTTP_ENCODING"
    assert says in found["message"]
    assert found["memory"] < 8 << 20


def test_bombs_are_as_small_as_those_of_the_review() -> None:
    assert len(make_bomb("gzip, gzip")) < 6_000
    assert len(make_bomb("zstd")) < 80_000
    assert len(BLOCK) * BLOCKS > 1_500_000_000


def test_a_body_that_is_not_encoded_is_read_up_to_the_limit(bombs: str) -> None:
    found = measure(f"{bombs}/endless")
    assert (found["code"], TOO_LARGE in found["message"]) == ("RESULT_TOO_LARGE", True)
    assert found["memory"] < MAX_CALL_MEMORY


def test_empty_members_without_end_are_refused(bombs: str) -> None:
    found = measure(f"{bombs}/members")
    assert (found["code"], "more than 100 gzip members" in found["message"]) == ("HTTP_BODY", True)


def test_a_token_endpoint_cannot_send_more_than_a_token(bombs: str) -> None:
    tokens = TokenCache(LOCAL_GUARD)
    fields = {"client_id": "me", "client_secret": "secret"}
    with pytest.raises(InvalidInput, match=f"larger than {MAX_TOKEN_RESPONSE_BYTES} bytes"):
        run(tokens.get(f"{bombs}/token", fields, None, None))


RUN_AND_TELL_PEAK = """
import atexit, re, runpy, sys

def tell_peak(file):
    kilobytes = re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]
    open(file, "w").write(str(int(kilobytes) << 10))

atexit.register(tell_peak, sys.argv[1])
sys.argv[:2] = ["noetl"]
runpy.run_module("noetl", run_name="__main__")
"""
PAGES = """\
- step: start
  tool:
    kind: http
    url: "BASE/page/1"
    spec:
      paginate:
        when: "{{ response.more }}"
        next_call: {url: "BASE/page/{{ response.items[0] + 1 }}"}
        collect: {}
"""


def test_a_page_of_a_pagination_may_be_a_bomb(bombs: str, tmp_path: Path) -> None:
    file = write_playbook(tmp_path, "pages", PAGES.replace("BASE", bombs))
    code, said, memory = run_noetl(tmp_path, "run", "--memory", str(file), "--json")
    assert code == 1, said
    assert TOO_LARGE in said
    assert memory < MAX_RUN_MEMORY


def run_noetl(home: Path, *arguments: str) -> tuple[int, str, int]:
    """The exit code, the output, and the peak memory of the process.

    The process tells its peak itself: what the system tells of a child begins with the size of the
    process that started it.
    """
    peak = home / "peak"
    done = subprocess.run(
        [sys.executable, "-c", RUN_AND_TELL_PEAK, str(peak), *arguments],
        cwd=ROOT,
        env=environment(NOETL_HOME=str(home / "home")),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.returncode, done.stdout, int(peak.read_text())

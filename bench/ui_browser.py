"""The page of large executions in a browser: how soon it can be used, what it holds, and how soon it shows what happens.

A real server and worker run two loops of so many items, one in chunks and one with a command for each item, in a home that is
deleted afterwards. `bench/ui.py` prints the figures beside their budgets; without Playwright or chromium it leaves them out.
"""

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import httpx

from noetl.runtime.token_files import read_token_file
from systems import free_address

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
]
WINDOW = {"width": 1440, "height": 900}
ANSWER_LIMIT_MS = 120_000
HANG_LIMIT_S = 1_800
LOADS = 7
STATES = 60
LOOK_MS = 300  # a person looks at a state before the next one
LIVE_STEPS = 20
BUDGETS = {
    "interactive ms": 1_000,
    "tab MB": 300,
    "heap MB": 60,
    "elements": 3_000,
    "state at an event, p95 ms": 300,
    "event to screen, p95 ms": 500,
}

LOOP = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: score, path: PATH}
workload: {n: 100000}
workflow:
  - step: plan
    tool: {kind: python, input: {n: "{{ workload.n }}"}, code: "result = list(range(n))"}
    next: score
  - step: score
    loop:
      in: "{{ plan.rows }}"
      iterator: item
      spec: {mode: parallel, CHUNK policy: {failure: at_end}}
    tool:
      kind: python
      input: {item: "{{ item }}"}
      code: |
        if item in (7777, 50000):
            raise ValueError(f"cannot score {item}")
        if item == 11:
            raise KeyError("weight")
        result = item
"""

# When everything a person needs is on the screen and the page answers: measured by the page itself, frame by frame.
NOTE_INTERACTIVE = """
(() => {
  const isReady = () =>
    document.querySelector('section[aria-label=failure],section[aria-label=result]') &&
    document.querySelector('.react-flow__node') &&
    document.querySelector('canvas') &&
    document.querySelector('[role=region][aria-label^="events"] button') &&
    document.querySelector('[role=tabpanel]')?.innerText
  const look = () => {
    if (isReady()) setTimeout(() => { window.interactiveAt = performance.now() })
    else requestAnimationFrame(look)
  }
  requestAnimationFrame(look)
})()
"""
# Moves the time cursor by the address, and waits for the frame in which the header says so.
SHOW_STATE = """
number => new Promise(resolve => {
  const read = () => document.querySelector('header [role=status]')?.innerText
  const before = read()
  const begun = performance.now()
  const url = new URL(location.href)
  url.searchParams.set('at', number)
  history.replaceState(history.state, '', url)
  const look = () => {
    const shown = read()
    if (shown !== undefined && shown !== before) resolve(performance.now() - begun)
    else requestAnimationFrame(look)
  }
  requestAnimationFrame(look)
})
"""
# Notes when each step is first shown as completed.
NOTE_COMPLETED = """
window.completedAt = {}
const look = () => {
  for (const option of document.querySelectorAll('[role=option]')) {
    const [name] = option.innerText.split(/[,:]? /)
    if (/completed/.test(option.innerText)) window.completedAt[name] ??= Date.now()
  }
  requestAnimationFrame(look)
}
requestAnimationFrame(look)
"""


def find_chromium() -> str | None:
    """The chromium of this machine; None without one, or without Playwright."""
    if find_spec("playwright") is None:
        return None
    named = os.environ.get("NOETL_BROWSER", "")
    if named not in ("", "required"):
        return named
    return next((path for path in map(shutil.which, PROGRAMS) if path is not None), None)


# ---- a server and a worker -----------------------------------------------------------------------------------------------


class LargeExecutions:
    """A server with a worker, on which large executions have run."""

    def __init__(self, url: str, home: Path) -> None:
        self.url = url
        self._home = home
        self._http = httpx.Client(base_url=url, trust_env=False, timeout=60)

    def wait_until_ready(self) -> None:
        self._wait(lambda: self._get("/ready") is not None and self._get("/api/workers"))

    def _make_header(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._read_token()}"}

    def open_context(self, browser: Any, **options: Any) -> Any:
        """A browser without history, with the session of the user of the server's home."""
        context = browser.new_context(base_url=self.url, viewport=WINDOW, **options)
        assert context.request.post("/api/session", data={"token": self._read_token()}).ok
        return context

    def _read_token(self) -> str | None:
        return read_token_file(self._home, "admin")

    def _wait(self, fact: Callable[[], object]) -> None:
        end = time.monotonic() + HANG_LIMIT_S
        while not fact():
            if time.monotonic() > end:
                raise TimeoutError(f"the server at {self.url} does not get on")
            time.sleep(0.05)

    def _get(self, path: str, **query: Any) -> Any:
        try:
            answer = self._http.get(path, params=query, headers=self._make_header())
        except httpx.TransportError:
            return None
        return answer.json() if answer.is_success else None

    def start(self, text: str, **payload: Any) -> str:
        headers = self._make_header()
        content = {"content": text}
        registered = self._http.post("/api/catalog/register", json=content, headers=headers)
        registered.raise_for_status()
        body = {"path": registered.json()["path"], "payload": payload}
        answer = self._http.post("/api/execute", json=body, headers=headers)
        answer.raise_for_status()
        return str(answer.json()["execution_id"])

    def wait_for_end(self, execution: str) -> None:
        self._wait(lambda: self._get(f"/api/executions/{execution}/status")["ended"])

    def read_view(self, execution: str) -> Any:
        return self._get(f"/api/executions/{execution}/view")

    def list_exits(self, execution: str) -> dict[str, float]:
        """When each step ended, by its event, in milliseconds of the epoch."""
        page = self._get(f"/api/executions/{execution}/events", types="step.exit", limit=1000)
        return {event["data"]["step"]: parse_ms(event["at"]) for event in page["events"]}


def parse_ms(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp() * 1000


@contextmanager
def run_server() -> Iterator[LargeExecutions]:
    url = free_address()
    port = url.rpartition(":")[2]
    with ExitStack() as stack:
        home = stack.enter_context(tempfile.TemporaryDirectory(prefix="noetl-bench-"))
        known = {name: value for name, value in os.environ.items() if not name.startswith("NOETL_")}
        settings = {"NOETL_HOME": home, "NOETL_LOG_LEVEL": "error", "NOETL_SERVER_URL": url}
        for command in (
            ["server", "start", "--port", port],
            ["worker", "start", "--name", "bench"],
        ):
            process = subprocess.Popen(
                [sys.executable, "-m", "noetl", *command], env={**known, **settings}
            )
            stack.callback(process.wait)
            stack.callback(process.terminate)
        server = LargeExecutions(url, Path(home))
        server.wait_until_ready()
        yield server


# ---- measuring -----------------------------------------------------------------------------------------------------------


def measure_loads(browser: Any, server: LargeExecutions, execution: str) -> dict[str, float]:
    """Medians over loads, each by a browser without history."""
    loads: list[dict[str, float]] = []
    for _ in range(LOADS):
        context = server.open_context(browser)
        page = context.new_page()
        page.set_default_timeout(ANSWER_LIMIT_MS)
        page.add_init_script(NOTE_INTERACTIVE)
        page.goto(f"/executions/{execution}")
        wait_in_page(page, "() => window.interactiveAt !== undefined")
        page.wait_for_load_state("networkidle")
        loads.append(
            {
                "interactive ms": page.evaluate("window.interactiveAt"),
                "elements": page.evaluate("document.querySelectorAll('*').length"),
                "heap MB": page.evaluate("performance.memory.usedJSHeapSize") / 1e6,
                "tab MB": measure_tab_mb(browser),
            }
        )
        context.close()
    medians = {name: round(median(load[name] for load in loads), 1) for name in loads[0]}
    return {"first load ms": round(loads[0]["interactive ms"], 1), **medians}


def wait_in_page(page: Any, fact: str) -> None:
    """Look in every frame until the function says so. Playwright's own way to wait needs `eval`, which the policy refuses."""
    page.evaluate(
        f"""() => new Promise(done => {{
            const isSo = {fact}
            const look = () => isSo() ? done() : requestAnimationFrame(look)
            look()
        }})"""
    )


def measure_tab_mb(browser: Any) -> float:
    """Resident memory of the largest process that renders pages."""
    session = browser.new_browser_cdp_session()
    processes = session.send("SystemInfo.getProcessInfo")["processInfo"]
    session.detach()
    pids = [process["id"] for process in processes if process["type"] == "renderer"]
    pages = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids]
    return max(pages) * os.sysconf("SC_PAGE_SIZE") / 1e6


def measure_states(browser: Any, server: LargeExecutions, execution: str) -> dict[str, float]:
    """How long the page takes from a new place of the time cursor until it shows the state there."""
    view = server.read_view(execution)
    chance = random.Random(7)
    page = server.open_context(browser).new_page()
    page.set_default_timeout(ANSWER_LIMIT_MS)
    page.goto(f"/executions/{execution}")
    page.wait_for_load_state("networkidle")
    places = [chance.randint(1, view["events"] - 1) for _ in range(2 * STATES)]
    taken = []
    for place in places[:STATES]:
        page.wait_for_timeout(LOOK_MS)
        taken.append(page.evaluate(SHOW_STATE, place))
    hurried = [page.evaluate(SHOW_STATE, place) for place in places[STATES:]]
    page.context.close()
    return summarize("state at an event", taken) | summarize("one state after the other", hurried)


def measure_live(browser: Any, server: LargeExecutions) -> dict[str, float]:
    """From the event that ends a step to the frame that shows it."""
    names = [f"s{number}" for number in range(LIVE_STEPS)]
    execution = server.start(make_chain(names))
    page = server.open_context(browser).new_page()
    page.set_default_timeout(ANSWER_LIMIT_MS)
    page.add_init_script(NOTE_COMPLETED)
    page.goto(f"/executions/{execution}")
    page.wait_for_load_state("domcontentloaded")
    server.wait_for_end(execution)
    last = names[-1]
    wait_in_page(page, f"() => window.completedAt['{last}'] !== undefined")
    shown = page.evaluate("window.completedAt")
    page.context.close()
    ended = server.list_exits(execution)
    late = [shown[name] - ended[name] for name in names[LIVE_STEPS // 4 :]]  # the page was open
    return summarize("event to screen", late)


def make_chain(names: list[str]) -> str:
    steps = []
    for name, after in zip(names, [*names[1:], None], strict=True):
        follows = "" if after is None else f", next: {after}"
        code = "import time; time.sleep(0.4); result = 1"
        steps.append(f"  - {{step: {name}, tool: {{kind: python, code: '{code}'}}{follows}}}\n")
    head = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: chain, path: bench/chain}\n"
    return f"{head}workflow:\n{''.join(steps)}"


def summarize(name: str, taken: list[float]) -> dict[str, float]:
    centiles = quantiles(taken, n=100)
    return {
        f"{name}, p50 ms": round(centiles[49], 1),
        f"{name}, p95 ms": round(min(centiles[94], max(taken)), 1),
    }


def measure_pages(chromium: str, items: int) -> dict[str, dict[str, float]]:
    sync_api = import_module("playwright.sync_api")
    with run_server() as server, sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        found: dict[str, dict[str, float]] = {}
        for name, chunk in (("chunks", ""), ("one by one", "chunk: 1,")):
            text = LOOP.replace("PATH", f"bench/{name.replace(' ', '_')}").replace("CHUNK", chunk)
            begun = time.perf_counter()
            execution = server.start(text, n=items)
            server.wait_for_end(execution)
            ran = time.perf_counter() - begun
            events = server.read_view(execution)["events"]
            figures = {"events": events, "ran s": round(ran, 1)}
            figures |= measure_loads(browser, server, execution)
            figures |= measure_states(browser, server, execution)
            found[name] = figures
        found["live"] = measure_live(browser, server)
        browser.close()
    return found


def print_pages(found: dict[str, dict[str, float]]) -> None:
    print("\nin the browser")
    for name, figures in found.items():
        for figure, value in figures.items():
            budget = BUDGETS.get(figure)
            bound = "" if budget is None else f"at most {budget}"
            print(f"{name:12} {figure:28} {value:>10} {bound}")


def build_page() -> None:
    subprocess.run(
        [sys.executable, str(ROOT / "ui" / "build.py")], check=True, stdout=subprocess.DEVNULL
    )


def measure_if_possible(items: int) -> dict[str, dict[str, float]] | None:
    """The figures of the pages; None if there is no browser to measure in."""
    chromium = find_chromium()
    if chromium is None:
        return None
    build_page()
    return measure_pages(chromium, items)

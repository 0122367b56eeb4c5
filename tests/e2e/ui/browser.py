"""A chromium of this machine that Playwright drives, and a tab that remembers everything that went wrong in it.

`NOETL_BROWSER` is the path of a chromium, or `required`: then a missing browser is a failure, not a reason to skip.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
ANSWER_LIMIT_MS = 60_000  # catches a hang, however busy the machine is
HOW = "`apt-get install chromium`, then `uv run --group browser pytest tests/e2e/ui`"
# Playwright has no event for it: a violation of the policy is collected in the page and asked for at the end.
COLLECT_VIOLATIONS = """
window.policyViolations = [];
document.addEventListener('securitypolicyviolation', event => {
  window.policyViolations.push(`${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}:${event.lineNumber}`);
});
"""


def skip_or_fail(reason: str) -> None:
    """Skip the test, or fail it where a browser is required."""
    if os.environ.get("NOETL_BROWSER") == "required":
        pytest.fail(reason)
    pytest.skip(reason)


def require_chromium() -> str:
    """The chromium of this machine. Skips or fails the test if there is none, or no Playwright."""
    if find_spec("playwright") is None:
        skip_or_fail(f"Playwright is not installed: {HOW}")
    named = os.environ.get("NOETL_BROWSER", "")
    if named not in ("", "required"):
        return named
    found = [path for path in map(shutil.which, PROGRAMS) if path is not None]
    if not found:
        skip_or_fail(f"there is no chromium: {HOW}")
    return found[0]


@contextmanager
def launch_browser(chromium: str) -> Iterator[Any]:
    """A browser of Playwright. Its event loop runs meanwhile, so nothing else of this thread may use one."""
    sync_api = import_module("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


def sign_in(context: Any, token: str) -> None:
    """Give a context of Playwright the session of the owner of this token."""
    answer = context.request.post("/api/session", data={"token": token})
    assert answer.ok, answer.text()


@dataclass
class WatchedTab:
    """A tab, and the errors of its console, its scripts and its policy."""

    page: Any  # a Page of Playwright
    errors: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.set_default_timeout(ANSWER_LIMIT_MS)
        self.page.add_init_script(COLLECT_VIOLATIONS)
        self.page.on("console", self._hear_console)
        self.page.on("pageerror", lambda error: self.errors.append(f"script: {error}"))
        self.page.on("dialog", self._hear_dialog)
        self.page.on("crash", lambda: self.errors.append("the tab has crashed"))

    def _hear_console(self, message: Any) -> None:
        if message.type == "error":
            place = message.location.get("url", "")
            self.errors.append(f"console: {message.text} {place}".rstrip())

    def _hear_dialog(self, dialog: Any) -> None:
        self.errors.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def list_problems(self) -> list[str]:
        """Everything that went wrong since the tab was opened."""
        violations = self.page.evaluate("window.policyViolations ?? []")
        return [*self.errors, *(f"policy: {violation}" for violation in violations)]

    def save_picture(self, folder: Path, name: str) -> Path:
        """A picture of the whole page, for people to look at."""
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"{name}.png"
        self.page.screenshot(path=file, full_page=True)
        return file


def list_renderer_megabytes(page: Any) -> list[float]:
    """The resident memory of each process of the browser that renders pages."""
    session = page.context.browser.new_browser_cdp_session()
    processes = session.send("SystemInfo.getProcessInfo")["processInfo"]
    session.detach()
    pids = [process["id"] for process in processes if process["type"] == "renderer"]
    return [read_resident_bytes(pid) / 1e6 for pid in pids]


def read_resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")

"""Pictures of the list and of execution pages with real data, for people to look at.

    uv run --group browser python -m tests.e2e.ui.screenshots [FOLDER]

It builds the page if its sources have changed, starts a server and a worker in a home of its own, runs five examples, and takes
each page in both themes and in three widths.
The folder is `build/pictures` unless another one is named.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.conftest import StackClient, open_stack_client
from tests.e2e.ui.browser import WatchedTab, launch_browser, require_chromium, sign_in
from tests.e2e.ui.samples import SCORE, SKIPS
from tests.stack import ROOT, NoetlCommand, Stack, run_stack, temporary_home
from tests.waiting import until

WIDTHS = [1440, 1280, 390]
THEMES = ["light", "dark"]
EXAMPLES = ROOT / "examples"


@dataclass(frozen=True)
class Picture:
    """A page of which pictures are taken, and what is on it when it is drawn."""

    name: str
    address: str
    region: str


def start_example(client: StackClient, name: str, **payload: Any) -> str:
    text = (EXAMPLES / name).read_text()
    answer = client.http.post("/api/catalog/register", json={"content": text})
    assert answer.is_success, answer.text
    return client.start(answer.json()["path"], **payload)


def find_command(client: StackClient, execution: str, step: str) -> str:
    """The items of the largest command of a loop, as the address names them."""
    spans = client.get(f"/api/executions/{execution}/timeline")["spans"]
    largest = max((span for span in spans if span["step"] == step), key=lambda span: span["count"])
    return f"first={largest['first']}&count={largest['count']}"


def run_examples(client: StackClient, folder: Path) -> list[Picture]:
    """Run the five examples, and name the pages of them."""
    quickstart = start_example(client, "quickstart.yaml", folder=str(folder / "sales"))
    approval = start_example(client, "approval.yaml")
    client.comes(approval, "command.parked")
    start_example(client, "nested/region.yaml")
    children = start_example(client, "nested/month.yaml")
    fan_out = start_example(client, "branches.yaml")
    score = client.start(client.register(SCORE, path="etl/score"), n=100_000, bad=[7_777, 50_000])
    skips = client.start(client.register(SKIPS, path="etl/skips"))
    for execution in (quickstart, children, fan_out, skips):
        ended = client.wait_for_end(execution)
        assert ended["status"] == "completed", ended["error"]
    client.wait_for_end(score)
    first_command = find_command(client, score, "score")
    return [
        Picture("list", "/executions", "waits for you"),
        Picture("quickstart", f"/executions/{quickstart}", "result"),
        Picture("quickstart-spark", f"/executions/{quickstart}?step=sales&tab=spark", "result"),
        Picture(
            "quickstart-lineage", f"/executions/{quickstart}?step=totals&tab=lineage", "result"
        ),
        Picture("loop", f"/executions/{score}", "failure"),
        Picture(
            "loop-command", f"/executions/{score}?step=score&tab=items&{first_command}", "failure"
        ),
        Picture("loop-past", f"/executions/{score}?at=40", "what runs now"),
        Picture("fan-out", f"/executions/{fan_out}", "result"),
        Picture("approval", f"/executions/{approval}", "waits for you"),
        Picture("children", f"/executions/{children}", "result"),
        Picture("children-items", f"/executions/{children}?step=close_regions&tab=items", "result"),
        Picture("skips", f"/executions/{skips}", "result"),
    ]


def take_pictures(
    browser: Any, stack: Stack, pictures: list[Picture], folder: Path
) -> Iterator[Path]:
    for theme in THEMES:
        for width in WIDTHS:
            window = {"width": width, "height": 844 if width < 720 else 900}
            context = browser.new_context(base_url=stack.url, viewport=window, color_scheme=theme)
            sign_in(context, stack.command.token)
            for picture in pictures:
                tab = WatchedTab(context.new_page())
                tab.page.goto(picture.address)
                tab.page.get_by_role("region", name=picture.region, exact=True).wait_for()
                tab.page.wait_for_load_state("networkidle")
                yield tab.save_picture(folder, f"{picture.name}-{theme}-{width}")
                assert tab.list_problems() == []
                tab.page.close()
            context.close()


def take_all_pictures(folder: Path) -> list[Path]:
    chromium = require_chromium()
    subprocess.run([sys.executable, str(ROOT / "ui" / "build.py")], check=True)
    with (
        temporary_home("pictures") as home,
        tempfile.TemporaryDirectory(prefix="noetl-pictures-") as written,
        run_stack(NoetlCommand(home), workers=1) as stack,
        open_stack_client(stack) as client,
    ):
        until(lambda: len(client.get("/api/workers")) == 1)
        pictures = run_examples(client, Path(written))
        with launch_browser(chromium) as browser:
            return list(take_pictures(browser, stack, pictures, folder))


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "pictures"
    for file in take_all_pictures(folder):
        print(file)


if __name__ == "__main__":
    main()

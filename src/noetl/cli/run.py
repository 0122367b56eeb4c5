"""`noetl run`: a playbook from its file to its end, and what to say about it."""

import asyncio
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from noetl.model.errors import InvalidInput

if TYPE_CHECKING:
    from noetl.cli.story import Story

FAILED = 1


def register(app: typer.Typer) -> None:
    app.command()(run)


def run(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="a playbook")],
    memory: Annotated[
        bool, typer.Option("--memory", help="log, queue and results in this process; gone when it ends")
    ] = False,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="K=V", help="one workload value; V is YAML, K may have dots")
    ] = None,
    payload: Annotated[
        Path | None, typer.Option("--payload", metavar="FILE", help="workload values from a YAML or JSON file")
    ] = None,
    also: Annotated[
        list[Path] | None, typer.Option("--with", metavar="FILE", help="a playbook that this one calls as a child")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object and nothing else")] = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="print every event as it is recorded")] = False,
) -> None:
    """Run a playbook and wait for its end.

    Prints its steps, then the result of the last one, or the first failure that nothing handled and where it happened.
    Values given with --set win over those of --payload, and both over the playbook's own workload.

    Exit code: 0 completed, 1 failed or cancelled, 2 the playbook or the arguments are wrong.

    \b
    Examples:
      noetl run --memory examples/hello.yaml
      noetl run --memory examples/loop.yaml --set count=100 --json
      noetl run --memory invoices.yaml --payload january.json --watch
    """
    if not memory:
        raise InvalidInput(
            "this build keeps executions in memory only: there is no durable mode yet",
            hint=f"noetl run --memory {file}",
        )
    source, others = read(file), [(path, read(path)) for path in also or []]
    workload = merged(values_of(payload), assignments or [])
    story = asyncio.run(follow(file, source, workload, others, screen(as_json, watch)))
    if as_json:
        sys.stdout.write(json.dumps(story.to_dict(), ensure_ascii=False) + "\n")
    else:
        from noetl.cli.story import print_end

        print_end(story)
    raise typer.Exit(0 if story.status == "completed" else FAILED)


Show = Callable[["Story"], None]


async def follow(
    file: Path, source: str, workload: dict[str, Any], others: list[tuple[Path, str]], show: Show
) -> "Story":
    """The execution from its start to its end; `show` is called whenever something was recorded."""
    from noetl.cli.memory import Cluster
    from noetl.cli.story import Story

    async with Cluster() as cluster:
        for path, text in others:
            await cluster.register(text, str(path))
        execution_id = await cluster.start(source, str(file), workload)
        story = Story(execution_id)
        while not story.ended:
            recorded = await cluster.events_after(execution_id, story.last_seq)
            story.add(recorded)
            if recorded:
                show(story)
        await story.settle(cluster.resolve)
        return story


def screen(as_json: bool, watch: bool) -> Show:
    if as_json:
        return lambda story: None
    from noetl.cli.story import Lines, Live

    return Lines() if watch else Live()


# ---- what the user gave ------------------------------------------------------------------------------------------------


def read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"{file}: {error.strerror or error}", hint=_similar(file)) from error
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{file}: not UTF-8 text") from error


def _similar(file: Path) -> str | None:
    from difflib import get_close_matches

    names = os.listdir(file.parent) if file.parent.is_dir() else []
    close = get_close_matches(file.name, names, 1)
    return f"did you mean {file.parent / close[0]}?" if close else None


def values_of(payload: Path | None) -> dict[str, Any]:
    if payload is None:
        return {}
    values = plain(read(payload), str(payload))
    if not isinstance(values, dict):
        raise InvalidInput(f"{payload}: a payload is a mapping of workload names to values")
    return values


def merged(values: dict[str, Any], assignments: list[str]) -> dict[str, Any]:
    """`--set a.b=1` over the payload: `{"a": {"b": 1}}`."""
    from noetl.playbook.workload import over

    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        path = name.strip().split(".")
        if not equals or not all(path):
            raise InvalidInput(
                f"--set {assignment!r}: no name and value", hint="--set name=value, for example --set limit=20"
            )
        given: Any = plain(text, f"--set {name}")
        for part in reversed(path):
            given = {part: given}
        values = over(values, given)
    return values


def plain(text: str, where: str) -> Any:
    """YAML as plain data, within the limits of a playbook: no tags, no duplicate keys."""
    from noetl.playbook import text as yaml

    if not text.strip():
        return None
    document = yaml.read(text)
    for problem in document.problems:
        raise InvalidInput(f"{where}:{problem.mark.line}:{problem.mark.column}: {problem.message}", hint=problem.hint)
    return yaml.plain(document.data)

"""Arguments and options that several commands have."""

from pathlib import Path
from typing import Annotated

import typer


def refuse_empty_text(given: str) -> str:
    """The text of an argument. Raises if a shell has put nothing in its place."""
    if not given.strip():
        raise typer.BadParameter("it is empty")
    return given


ID = Annotated[str, typer.Argument(metavar="ID", help="an execution's id, or @latest")]
Step = Annotated[
    str,
    typer.Argument(metavar="STEP", help="a step of its playbook", callback=refuse_empty_text),
]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON")]
Assignments = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="K=V", help="one workload value; V is YAML, K may have dots"),
]
PayloadFile = Annotated[
    Path | None,
    typer.Option("--payload", metavar="FILE", help="workload values from a YAML or JSON file"),
]
Host = Annotated[
    str | None,
    typer.Option("--host", help="127.0.0.1; 0.0.0.0: reachable from elsewhere (NOETL_HOST)"),
]
Port = Annotated[
    int | None,
    typer.Option(
        "--port",
        "-p",
        min=0,
        max=65535,
        help="8082 (NOETL_PORT); 0: a free one",
    ),
]

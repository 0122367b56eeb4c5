"""Arguments and options that several commands have."""

from pathlib import Path
from typing import Annotated

import typer

ID = Annotated[str, typer.Argument(metavar="ID", help="an execution's id, or @latest")]
Step = Annotated[str, typer.Argument(metavar="STEP", help="a step of its playbook")]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON")]
Assignments = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="K=V", help="one workload value; V is YAML, K may have dots"),
]
PayloadFile = Annotated[
    Path | None,
    typer.Option("--payload", metavar="FILE", help="workload values from a YAML or JSON file"),
]

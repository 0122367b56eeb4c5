"""Arguments and options that several commands have."""

from typing import Annotated

import typer

ID = Annotated[str, typer.Argument(metavar="ID", help="an execution's id, or @latest")]
Step = Annotated[str, typer.Argument(metavar="STEP", help="a step of its playbook")]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON")]

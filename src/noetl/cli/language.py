"""The language as this machine has it: tools that installed packages bring are known, and their fields are checked."""

import sys
from functools import cache

from noetl.playbook import validation
from noetl.playbook.findings import Code
from noetl.playbook.model import Playbook
from noetl.playbook.validation import Kinds, LoadedPlaybook, PlaybookInvalid


@cache
def kinds() -> Kinds:
    from noetl.tools import registry

    return registry.models(registry.outside())


def load(source: str | bytes, file: str) -> LoadedPlaybook:
    return validation.load(source, file=file, kinds=kinds())


def load_or_raise(source: str | bytes, file: str) -> Playbook:
    """What is about to be registered or run. A tool that is not here is told of: the step fails unless a worker has it."""
    loaded = load(source, file)
    if loaded.playbook is None:
        raise PlaybookInvalid(loaded.findings)
    for finding in loaded.findings:
        if finding.code == Code.UNKNOWN_KIND:
            print(f"{finding}\n    {finding.hint}", file=sys.stderr)
    return loaded.playbook

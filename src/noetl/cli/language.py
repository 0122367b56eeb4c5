"""Loads playbooks with the tools of this machine: tools of installed packages are checked too."""

import sys
from functools import cache

from noetl.playbook import validation
from noetl.playbook.findings import Code
from noetl.playbook.model import Playbook
from noetl.playbook.validation import Kinds, LoadedPlaybook, PlaybookInvalid
from noetl.tools import registry


@cache
def find_known_kinds() -> Kinds:
    return registry.list_config_models(registry.load_entry_point_tools())


def check_playbook(source: str | bytes, file: str) -> LoadedPlaybook:
    return validation.load(source, file=file, kinds=find_known_kinds())


def check_playbook_or_raise(source: str | bytes, file: str) -> Playbook:
    """The playbook, or PlaybookInvalid.

    Prints unknown tools on stderr: their steps fail unless a worker has these tools.
    """
    loaded = check_playbook(source, file)
    if loaded.playbook is None:
        raise PlaybookInvalid(loaded.findings)
    for finding in loaded.findings:
        if finding.code == Code.UNKNOWN_KIND:
            print(f"{finding}\n    {finding.hint}", file=sys.stderr)
    return loaded.playbook

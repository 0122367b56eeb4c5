"""Checks playbooks with the tools of this machine: tools of installed packages are checked too."""

from functools import cache

from noetl.playbook import validation
from noetl.playbook.model import Playbook
from noetl.playbook.validation import Kinds, LoadedPlaybook, PlaybookInvalid
from noetl.tools import registry


@cache
def find_known_kinds() -> Kinds:
    return registry.list_config_models(registry.load_entry_point_tools())


def check_playbook(source: str | bytes, file: str) -> LoadedPlaybook:
    return validation.load(source, file=file, kinds=find_known_kinds())


def load_playbook(source: str | bytes, file: str) -> Playbook:
    """The playbook. Raises `PlaybookInvalid` with the findings if it has errors."""
    loaded = check_playbook(source, file)
    if loaded.playbook is None:
        raise PlaybookInvalid(loaded.findings)
    return loaded.playbook

"""Finds children and credentials that playbook files name and a server does not have."""

from noetl.cli.client import Client
from noetl.model.errors import NotFound
from noetl.playbook.children import literal_children
from noetl.playbook.credential_names import literal_credentials
from noetl.playbook.findings import Finding
from noetl.playbook.missing_warnings import warn_unknown_credential, warn_unknown_playbook
from noetl.playbook.model import Playbook

CheckedPlaybook = tuple[str, str, Playbook]  # file, its text, the playbook in it


async def find_missing_on_server(client: Client, checked: list[CheckedPlaybook]) -> list[Finding]:
    """A finding for each missing child and credential. A child may be among the checked files."""
    checked_paths = {playbook.metadata.path or playbook.metadata.name for _, _, playbook in checked}
    credentials = {row["name"] for row in await client.list_credentials()}
    findings: list[Finding] = []
    for file, text, playbook in checked:
        for path, version in literal_children(playbook):
            if path in checked_paths or await _is_registered(client, path, version):
                continue
            findings.append(warn_unknown_playbook(text, path, version, file))
        for name in literal_credentials(playbook):
            if name not in credentials:
                findings.append(warn_unknown_credential(text, name, file))
    return findings


async def _is_registered(client: Client, path: str, version: str | None) -> bool:
    number = None
    if version is not None and version.isdigit():
        number = int(version)
    try:
        await client.get_playbook(path, number)
    except NotFound:
        return False
    return True

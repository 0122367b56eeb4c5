"""Finds children and credentials that playbook files name and a server does not have."""

import asyncio

from noetl.cli.language import CheckedPlaybook
from noetl.client.http import HttpClient
from noetl.client.rows import RowClient
from noetl.model.errors import NotFound
from noetl.playbook.children import literal_children
from noetl.playbook.credential_names import literal_credentials
from noetl.playbook.findings import Finding
from noetl.playbook.missing_warnings import warn_unknown_credential, warn_unknown_playbook
from noetl.settings import HomeSettings, read_settings


def ask_for_missing(server: str, checked: list[CheckedPlaybook]) -> list[Finding]:
    """Connect to the server at this address, and find what it does not have."""

    async def ask() -> list[Finding]:
        home = read_settings(HomeSettings).home_path
        async with HttpClient(server.rstrip("/"), home) as client:
            return await find_missing_on_server(client, checked)

    return asyncio.run(ask())


async def find_missing_on_server(
    client: RowClient, checked: list[CheckedPlaybook]
) -> list[Finding]:
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


async def _is_registered(client: RowClient, path: str, version: str | None) -> bool:
    number = None
    if version is not None and version.isdigit():
        number = int(version)
    try:
        await client.get_playbook(path, number)
    except NotFound:
        return False
    return True

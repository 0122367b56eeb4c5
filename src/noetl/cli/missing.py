"""Children and credentials that playbook files name and a server does not have."""

from typing import TYPE_CHECKING

from noetl.cli.client import Client
from noetl.model.errors import NotFound
from noetl.playbook.children import literal_children
from noetl.playbook.findings import Finding
from noetl.playbook.missing import unknown_credential, unknown_playbook
from noetl.playbook.named import literal_credentials

if TYPE_CHECKING:
    from noetl.playbook.model import Playbook

Checked = tuple[str, str, "Playbook"]  # file, text, what it says


async def missing_on_server(client: Client, checked: list[Checked]) -> list[Finding]:
    """Playbooks that are checked together know each other."""
    together = {playbook.metadata.path or playbook.metadata.name for _, _, playbook in checked}
    credentials = {row["name"] for row in await client.credentials()}
    found: list[Finding] = []
    for file, text, playbook in checked:
        for path, version in literal_children(playbook):
            if path not in together and not await _is_registered(client, path, version):
                found.append(unknown_playbook(text, path, version, file))
        names = [name for name in literal_credentials(playbook) if name not in credentials]
        found += [unknown_credential(text, name, file) for name in names]
    return found


async def _is_registered(client: Client, path: str, version: str | None) -> bool:
    number = int(version) if version is not None and version.isdigit() else None
    try:
        await client.playbook(path, number)
    except NotFound:
        return False
    return True

"""Registers the playbooks of a folder whenever they change, as `noetl dev` does."""

import asyncio
import sys
from pathlib import Path

from noetl.cli.arguments import find_playbook_files, read_text_file
from noetl.cli.language import check_playbook_or_raise
from noetl.cli.output import format_error, say
from noetl.model.errors import NoetlError
from noetl.model.identity import LOCAL_IDENTITY
from noetl.runtime.node import Node

PLAYBOOK_MARKS = ("noetl.io/", "workflow:")  # in every playbook, and in few other files
FOLDER_POLL_S = 0.5  # seconds between two looks at a folder


async def watch_folder(folder: Path, node: Node) -> None:
    """Register new and changed files. Problems of a file are printed, and watching goes on."""
    states_before: dict[Path, tuple[int, int]] = {}
    while True:
        states = await asyncio.to_thread(_read_file_states, folder)
        for file, state in states.items():
            if states_before.get(file) != state:
                states_before[file] = state
                await _register_changed_file(file, node)
        await asyncio.sleep(FOLDER_POLL_S)


def _read_file_states(folder: Path) -> dict[Path, tuple[int, int]]:
    """Time of the last change and size of each playbook."""
    states = {}
    for file in find_playbook_files(folder):
        try:
            states[file] = (file.stat().st_mtime_ns, file.stat().st_size)
        except OSError:  # deleted since it was listed
            continue
    return states


def _may_be_playbook(text: str) -> bool:
    """Whether it is worth a message if it is no playbook: folders hold YAML of other programs too."""
    return any(mark in text for mark in PLAYBOOK_MARKS)


async def _register_changed_file(file: Path, node: Node) -> None:
    try:
        text = read_text_file(file)
        if not _may_be_playbook(text):
            return
        await asyncio.to_thread(
            check_playbook_or_raise, text, str(file)
        )  # so that findings name the file
        registered = await node.services.catalog.register(LOCAL_IDENTITY, text)
    except NoetlError as error:
        print(format_error(error), file=sys.stderr)
        return
    if registered.created:
        say(f"{file}: {registered.path} version {registered.version}")
        sys.stdout.flush()

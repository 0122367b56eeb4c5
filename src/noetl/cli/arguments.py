"""What the user gives to commands: playbooks, and text files."""

import os
from difflib import get_close_matches
from pathlib import Path

from noetl.model.errors import InvalidInput

# Endings of test files. They are in the folders of playbooks, and are no playbooks.
PLAYBOOK_ENDINGS = (".yaml", ".yml")
BUILT_FOLDERS = frozenset({"__pycache__", "build", "dist", "node_modules", "site-packages", "venv"})
TEST_FILE_ENDINGS = (".test.yaml", ".test.yml")


class PlaybookSource:
    """The playbook that the user named: a file with its text, or a path of the catalog."""

    def __init__(self, name: str, text: str | None) -> None:
        self.name = name
        self.text = text

    @classmethod
    def from_argument(cls, argument: str) -> "PlaybookSource":
        """Raises if the argument looks like a file and there is no such file."""
        file = Path(argument)
        is_file = file.suffix in (".yaml", ".yml") or argument.startswith((".", "/", "~"))
        if is_file or file.exists():
            return cls(argument, read_text_file(file.expanduser()))
        return cls(argument, None)


def find_playbook_files(place: Path) -> list[Path]:
    """The file itself, or the playbooks below a folder.

    Folders of other programs are left out: hidden ones, and those that hold what they have built or
    installed.
    """
    if not place.is_dir():
        return [place]
    found: list[Path] = []
    for folder, subfolders, names in os.walk(place):
        subfolders[:] = [name for name in subfolders if not _is_left_out(name)]
        paths = [Path(folder, name) for name in names if name.endswith(PLAYBOOK_ENDINGS)]
        found += [path for path in paths if not path.name.endswith(TEST_FILE_ENDINGS)]
    return sorted(path for path in found if path.is_file())


def _is_left_out(folder: str) -> bool:
    return folder.startswith(".") or folder in BUILT_FOLDERS


def read_text_file(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"{file}: {error.strerror or error}", hint=suggest_file(file)) from error
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{file}: not UTF-8 text") from error


def suggest_file(file: Path) -> str | None:
    if not file.parent.is_dir():
        return None
    names = [name for name in os.listdir(file.parent) if name != file.name]
    close = get_close_matches(file.name, names, 1, cutoff=0.75)
    return f"did you mean {file.parent / close[0]}?" if close else None

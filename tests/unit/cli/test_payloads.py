"""Values that a person gives on the command line: keys that stand twice are refused, since one of them would be lost."""

from pathlib import Path

import pytest

from noetl.cli.credentials import read_fields
from noetl.cli.payloads import merge_assignments, read_payload
from noetl.model.errors import InvalidInput


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("p.json", '{"limit": 1, "rows": {"id": 1, "id": 2}}'),
        ("p.yaml", "limit: 1\nrows:\n  id: 1\n  id: 2\n"),
    ],
)
def test_payload_file_with_a_key_twice_is_refused_by_name_and_line(
    tmp_path: Path, name: str, text: str
) -> None:
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(InvalidInput, match=r"p\.(json|yaml):\d+:\d+: the key `id` stands twice"):
        read_payload(file)


def test_set_of_a_map_with_a_key_twice_is_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match="the key `id` stands twice"):
        merge_assignments({}, ['rows={"id": 1, "id": 2}'])


def test_credential_fields_with_a_key_twice_are_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match="the key 'token' stands twice"):
        read_fields('{"token": "a", "token": "b"}', None)

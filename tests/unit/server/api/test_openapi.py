"""The HTTP API stays as it is for its users."""

import json

from tests.unit.server.api.openapi import DOCUMENT, make_normal_openapi


def test_the_api_is_as_documented() -> None:
    """After an intended change, write the document again and read the difference."""
    expected = json.loads(DOCUMENT.read_text(encoding="utf-8"))
    actual = make_normal_openapi()
    for part in ("schemas",):
        assert actual["components"][part].keys() == expected["components"][part].keys()
        for name, schema in expected["components"][part].items():
            assert actual["components"][part][name] == schema, name
    assert actual["paths"].keys() == expected["paths"].keys()
    for path, operations in expected["paths"].items():
        assert actual["paths"][path] == operations, path
    assert actual == expected

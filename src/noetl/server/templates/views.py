"""The struct that the answer to a try of a template has."""

from typing import Any

from noetl.server.http.structs import View


class RenderedView(View, frozen=True):
    result: Any

"""The structs that answers about playbooks have."""

from typing import Annotated

from noetl.catalog.port import CatalogEntry
from noetl.server.http.structs import View, describe


class FindingView(View, frozen=True):
    file: str
    line: int
    column: int
    step: str | None
    code: str
    message: str
    hint: str | None
    severity: str


class EntryView(View, frozen=True):
    path: Annotated[str, describe(example="examples/hello")]
    version: Annotated[int, describe(example=3)]
    hash: Annotated[
        str, describe(example="9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08")
    ]


class RegisteredView(EntryView, frozen=True):
    created: Annotated[bool, describe("false: this text was the latest version already")]
    findings: Annotated[list[FindingView], describe("warnings and notes")]


class PlaybookView(EntryView, frozen=True):
    content: str


class EntriesView(View, frozen=True):
    playbooks: list[EntryView]
    next: Annotated[str | None, describe("the `after` of the next page")]


class VersionsView(View, frozen=True):
    versions: list[EntryView]
    next: Annotated[int | None, describe("the `before` of the next page")]


class DifferenceView(View, frozen=True):
    path: str
    older: int
    newer: int
    diff: Annotated[str, describe("unified; empty when the texts are equal")]


class GraphStepView(View, frozen=True):
    name: str
    kinds: Annotated[
        list[str], describe("tools of its tasks, in order, each once", example=["python"])
    ]
    loop: bool
    line: Annotated[int | None, describe("of the playbook's text, from 1", example=18)]
    entry: Annotated[bool, describe("an execution begins here")]
    final: Annotated[bool, describe("it runs by itself when all others are over")]


class GraphArcView(View, frozen=True, rename={"source": "from", "target": "to", "is_else": "else"}):
    id: Annotated[
        str, describe("the step, and the number of the arc in it from 0", example="score:0")
    ]
    source: str
    target: str
    when: Annotated[
        str | None, describe("its condition as written", example="{{ output.stats.failed == 0 }}")
    ]
    line: int | None
    is_else: Annotated[bool, describe("it has no condition and is taken if none before it was")]


class GraphSkipView(View, frozen=True, rename={"source": "from", "target": "to"}):
    """Where a step that an admission rule skips leads to."""

    source: str
    target: str
    rule: Annotated[int, describe("the number of the admission rule, from 0")]
    line: int | None
    when: Annotated[str | None, describe("its condition as written; null: whenever it is reached")]


class GraphView(View, frozen=True):
    hash: str
    path: str
    steps: Annotated[list[GraphStepView], describe("in the order of the text")]
    arcs: Annotated[list[GraphArcView], describe("in the order of the text")]
    skips: list[GraphSkipView]


def make_entry_view(entry: CatalogEntry) -> EntryView:
    return EntryView(path=entry.path, version=entry.version, hash=entry.hash)


def make_playbook_view(entry: CatalogEntry) -> PlaybookView:
    return PlaybookView(path=entry.path, version=entry.version, hash=entry.hash, content=entry.text)

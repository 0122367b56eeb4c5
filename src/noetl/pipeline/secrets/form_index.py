"""Finds which of many texts occur in data, in a time that does not grow with their number.

Data are read as machine words, each of which is looked up in a table. A text that is long enough
holds a whole aligned word in its middle, wherever it begins, so the table has one entry for each
possible alignment. Where a word of the table stands, the text around it is looked up as a whole. A
few texts, and very short ones, are searched for one by one, which is faster then.
"""

import re
import sys
from collections.abc import Iterator
from typing import Literal, NamedTuple

MIN_INDEXED_FORMS = 24  # texts; fewer are searched for one by one
FRAGMENT_CHARS = 6  # characters; a shorter beginning or end of a secret says little
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*(?::|%(?:25)?3[aA])[/\\%25fF]*")  # also URL-encoded
MIN_CUT_MIDDLE_CHARS = 100  # characters; a cut leaves longer texts


class WordSize(NamedTuple):
    """A size of words: how many bytes one has, and its name in `memoryview.cast`."""

    size: int
    code: Literal["Q", "I"]

    @property
    def min_form_bytes(self) -> int:
        return 2 * self.size - 1


LONG_WORDS, SHORT_WORDS = WordSize(8, "Q"), WordSize(4, "I")


class FoundForm(NamedTuple):
    """A place in the data where a text stands."""

    start: int
    end: int
    form: str


class WordTable:
    """The texts that are found by words of one size."""

    def __init__(self, words: WordSize) -> None:
        self._words = words
        self._forms: dict[bytes, str] = {}
        # For each word: how far before it a text begins, how long that is, and the texts of this shape.
        self._by_word: dict[int, dict[tuple[int, int], set[bytes]]] = {}
        self._few: tuple[bytes, ...] = ()  # all texts, while they are few

    def add(self, form: str, data: bytes) -> None:
        for word, offset in self._list_words(data):
            shapes = self._by_word.setdefault(word, {})
            shapes.setdefault((offset, len(data)), set()).add(data)
        self._forms[data] = form
        self._list_few()

    def remove(self, data: bytes) -> None:
        del self._forms[data]
        self._list_few()
        for word, offset in self._list_words(data):
            shapes = self._by_word[word]
            alike = shapes[offset, len(data)]
            alike.discard(data)
            if not alike:
                del shapes[offset, len(data)]
            if not shapes:
                del self._by_word[word]

    def _list_few(self) -> None:
        self._few = tuple(self._forms) if len(self._forms) < MIN_INDEXED_FORMS else ()

    def may_hold(self, data: bytes) -> bool:
        """Whether a text may stand in the data. Most data hold none, so this is the fast part of `find`."""
        if len(self._forms) < MIN_INDEXED_FORMS:
            return any(written in data for written in self._few)
        size = self._words.size
        words = memoryview(data)[: len(data) // size * size].cast(self._words.code)
        return not self._by_word.keys().isdisjoint(words)

    def find(self, data: bytes) -> Iterator[FoundForm]:
        if len(self._forms) < MIN_INDEXED_FORMS:
            for written, form in list(self._forms.items()):
                yield from find_each(data, written, form)
            return
        size = self._words.size
        words = memoryview(data)[: len(data) // size * size].cast(self._words.code)
        seen = self._by_word.keys() & words
        if seen:
            places = [at * size for at, word in enumerate(words) if word in seen]
            yield from self._look_at(data, places)

    def _look_at(self, data: bytes, places: list[int]) -> Iterator[FoundForm]:
        """The texts around words that belong to one."""
        size = self._words.size
        for place in places:
            word = int.from_bytes(data[place : place + size], sys.byteorder)
            for (offset, length), alike in list(self._by_word.get(word, {}).items()):
                start = place - offset
                written = data[max(start, 0) : start + length]
                if written in alike and written in self._forms:
                    yield FoundForm(start, start + length, self._forms[written])

    def _list_words(self, data: bytes) -> Iterator[tuple[int, int]]:
        """The words of the middle with their places. Beginnings differ less between secrets."""
        size = self._words.size
        first = (len(data) - self._words.min_form_bytes) // 2
        for start in range(first, first + size):
            yield int.from_bytes(data[start : start + size], sys.byteorder), start


def find_each(data: bytes, written: bytes, form: str) -> Iterator[FoundForm]:
    """Every place of one text."""
    start = data.find(written)
    while start >= 0:
        end = start + len(written)
        yield FoundForm(start, end, form)
        start = data.find(written, end)


class FormIndex:
    """The texts to find, and where one of them may have been cut."""

    def __init__(self) -> None:
        self._long = WordTable(LONG_WORDS)
        self._medium = WordTable(SHORT_WORDS)
        self._short: dict[str, bytes] = {}
        self._by_head: dict[str, tuple[str, ...]] = {}
        self._by_tail: dict[str, tuple[str, ...]] = {}
        self._large: dict[str, None] = {}  # forms that a cut may leave the middle of
        self._longest = 0  # characters of the longest form; it only grows

    def add(self, form: str) -> None:
        data = encode_text(form)
        if len(data) >= LONG_WORDS.min_form_bytes:
            self._long.add(form, data)
        elif len(data) >= SHORT_WORDS.min_form_bytes:
            self._medium.add(form, data)
        else:
            self._short[form] = data
        if len(form) > FRAGMENT_CHARS:
            _add_member(self._by_head, _get_head(form), form)
            _add_member(self._by_tail, form[-FRAGMENT_CHARS:], form)
            self._longest = max(self._longest, len(form))
        if len(form) > MIN_CUT_MIDDLE_CHARS:
            self._large[form] = None

    def remove(self, form: str) -> None:
        data = encode_text(form)
        if len(data) >= LONG_WORDS.min_form_bytes:
            self._long.remove(data)
        elif len(data) >= SHORT_WORDS.min_form_bytes:
            self._medium.remove(data)
        else:
            del self._short[form]
        if len(form) > FRAGMENT_CHARS:
            _remove_member(self._by_head, _get_head(form), form)
            _remove_member(self._by_tail, form[-FRAGMENT_CHARS:], form)
        self._large.pop(form, None)

    def may_hold(self, data: bytes) -> bool:
        """Whether a text may stand in the data: False is certain, True is not."""
        if self._long.may_hold(data) or self._medium.may_hold(data):
            return True
        return (
            any(written in data for written in list(self._short.values())) if self._short else False
        )

    def find(self, data: bytes, min_chars: int) -> Iterator[FoundForm]:
        """Where texts of at least so many characters stand, in no order."""
        for found in self._find_all(data):
            if len(found.form) >= min_chars:
                yield found

    def _find_all(self, data: bytes) -> Iterator[FoundForm]:
        yield from self._long.find(data)
        yield from self._medium.find(data)
        for form, written in list(self._short.items()):
            yield from find_each(data, written, form)

    # ---- texts that were cut -------------------------------------------------------------------------

    def find_cut_end(self, text: str) -> int | None:
        """Where the beginning of a form starts with which the text ends. None if there is none."""
        for start in range(max(0, len(text) - self._longest), len(text) - FRAGMENT_CHARS + 1):
            for form in self._by_head.get(text[start : start + FRAGMENT_CHARS], ()):
                is_part = _count_telling_chars(form) <= len(text) - start < len(form)
                if is_part and form.startswith(text[start:]):
                    return start
        return None

    def find_cut_start(self, text: str) -> int | None:
        """Where the end of a form ends with which the text starts. None if there is none."""
        for end in range(min(len(text), self._longest), FRAGMENT_CHARS - 1, -1):
            for form in self._by_tail.get(text[end - FRAGMENT_CHARS : end], ()):
                if end < len(form) and form.endswith(text[:end]):
                    return end
        return None

    def is_middle(self, text: str) -> bool:
        """Whether a text, cut at both ends, is the middle of a form."""
        if not MIN_CUT_MIDDLE_CHARS <= len(text) < self._longest:
            return False
        return any(text in form for form in list(self._large))

    def has_part_beside(self, text: str, start: int, end: int) -> bool:
        """Whether a part of a form ends where `start` is, or begins where `end` is."""
        before = text[max(0, start - self._longest) : start]
        if self.find_cut_end(before) is not None:
            return True
        return self.find_cut_start(text[end : end + self._longest]) is not None


def encode_text(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _get_head(form: str) -> str:
    """The first characters by which the beginning of a form is recognised."""
    return form[:FRAGMENT_CHARS]


def _count_telling_chars(form: str) -> int:
    """Characters of a beginning that tell something: `postgresql://` alone does not."""
    scheme = _SCHEME.match(form)
    if scheme is None:
        return FRAGMENT_CHARS
    return scheme.end() + FRAGMENT_CHARS


def _add_member(groups: dict[str, tuple[str, ...]], key: str, form: str) -> None:
    groups[key] = (*groups.get(key, ()), form)


def _remove_member(groups: dict[str, tuple[str, ...]], key: str, form: str) -> None:
    others = tuple(other for other in groups[key] if other != form)
    if others:
        groups[key] = others
    else:
        del groups[key]

"""YAML text made into plain data that remembers its lines; nothing in it can run, refer, or grow.

The data is built from the parser's events in one pass. Of YAML 1.2 it takes what a person needs to write a
scenario: sections, lists, texts, whole and decimal numbers, true, false, null. It refuses anchors, aliases and
tags (so no text grows beyond its size and none names a Python object), repeated keys, several documents, deep
nesting and large files.

Where YAML 1.1 readers guess, this one does not: ``on``, ``yes`` and ``no``, ``1e9``, ``1_000``, ``0x10``,
``010``, ``1:30`` and dates are texts; the schema then says what was expected. Decimal numbers become
``decimal.Decimal``, so ``1.5`` is exact.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path

import yaml

from pipecut.ingest.mistakes import FilePlace, Mistake, ScenarioError, Where, path_text, shown

LARGEST_FILE = 2**20
"""Bytes of the largest file that is read."""
DEEPEST = 12
"""Levels of sections and lists; a scenario needs six."""
LONGEST_NUMBER = 30
"""Characters of the longest number; longer ones stay text and fail as such."""

_WHOLE = re.compile(r"[-+]?(0|[1-9][0-9]*)", re.ASCII)
_DECIMAL = re.compile(r"[-+]?(0|[1-9][0-9]*)\.[0-9]+", re.ASCII)
_WORDS = {"true": True, "True": True, "false": False, "False": False, "null": None, "~": None, "": None}

_HINTS = {
    "mapping values": "put a text that contains ': ' in quotes",
    "cannot start any token": "indent with spaces, not tabs; put a text that starts with @, ` or % in quotes",
    "end of stream": "a quote or bracket is not closed",
}

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True)
class Document:
    """The data of one file, the place of every value (its key, or its item), and the mistakes found so far."""

    source: str
    data: object
    places: dict[Where, FilePlace]
    mistakes: tuple[Mistake, ...] = ()

    def place(self, where: Where) -> FilePlace:
        """Return the place of a value, or of the innermost section around it that was written anywhere."""
        for length in range(len(where), -1, -1):
            if where[:length] in self.places:
                return self.places[where[:length]]
        return FilePlace(self.source)

    @staticmethod
    def read(path: Path) -> Document:
        """Read a YAML file. Raises ScenarioError if it cannot be read or is not one plain YAML document."""
        source = str(path)
        try:
            with path.open("rb") as file:
                raw = file.read(LARGEST_FILE + 1)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise _fatal(FilePlace(source), f"cannot read the file: {reason}") from error
        if len(raw) > LARGEST_FILE:
            raise _fatal(
                FilePlace(source), f"the file is larger than {LARGEST_FILE} bytes, too large for a scenario"
            )
        try:
            text = raw.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = raw.count(b"\n", 0, error.start) + 1
            raise _fatal(FilePlace(source, line), "not UTF-8 text; save the file as UTF-8") from error
        return parse_document(text, source)


def parse_document(text: str, source: str) -> Document:
    """Build a document from YAML text; ``source`` is what messages call it. Raises ScenarioError."""
    builder = _Builder(source, iter(()))
    try:
        builder.events = iter(yaml.parse(text, Loader=_Loader))
        return builder.document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = FilePlace(source, mark.line + 1, mark.column + 1) if mark else FilePlace(source)
        raise _fatal(place, _syntax(error)) from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise _fatal(FilePlace(source, line), f"not text: {error.reason}") from error
    except UnicodeEncodeError as error:
        raise _fatal(FilePlace(source), "not text: a character that UTF-8 cannot hold") from error


def parse_scalar(text: str, source: str) -> object:
    """Return a YAML scalar or a list of them, such as the right side of an override. Raises ScenarioError."""
    data = parse_document(text, source).data if text.strip() else None
    inside = data if isinstance(data, list) else [data]
    if any(isinstance(one, dict | list) for one in inside):
        raise _fatal(FilePlace(source), f"expected one value or a list of values, got {shown(data)}")
    return data


@dataclass(slots=True)
class _Builder:
    """Turns events into data; keeps the place of every value and the keys that were repeated."""

    source: str
    events: Iterator[yaml.Event]
    places: dict[Where, FilePlace] = field(default_factory=dict)
    mistakes: list[Mistake] = field(default_factory=list)

    def document(self) -> Document:
        """Build the only document of the stream; an empty one is None."""
        data: object = None
        documents = 0
        for event in self.events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise _fatal(self._place(event), "a second document starts here; a file holds one scenario")
                first = next(self.events)
                self.places[()] = self._place(first)
                data = self._value(first, ())
        return Document(self.source, data, self.places, tuple(self.mistakes))

    def _value(self, event: yaml.Event, where: Where) -> object:
        """Build the value that starts with an event: at most DEEPEST calls deep."""
        self._refuse(event, where)
        if isinstance(event, yaml.ScalarEvent):
            return _plain(event.value) if event.implicit[0] else event.value
        return self._section(where) if isinstance(event, yaml.MappingStartEvent) else self._list(where)

    def _section(self, where: Where) -> dict[str, object]:
        """Build a section; of a repeated key the first value counts and the second is a mistake."""
        section: dict[str, object] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            self._refuse(event, where)
            if not isinstance(event, yaml.ScalarEvent):
                raise _fatal(self._place(event), "a key is a section or a list; expected text", where)
            path, place = (*where, event.value), self._place(event)
            if path in self.places:
                first = self.places[path].line
                self.mistakes.append(Mistake(place, path_text(path), f"repeated key (first at line {first})"))
                _Builder(self.source, self.events)._value(next(self.events), path)
            else:
                self.places[path] = place
                section[event.value] = self._value(next(self.events), path)
        return section

    def _list(self, where: Where) -> list[object]:
        items: list[object] = []
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            path = (*where, len(items))
            self.places[path] = self._place(event)
            items.append(self._value(event, path))
        return items

    def _refuse(self, event: yaml.Event, where: Where) -> None:
        """Raise ScenarioError for what makes YAML more than plain data."""
        place = self._place(event)
        if isinstance(event, yaml.AliasEvent):
            raise _fatal(place, f"alias *{event.anchor}: aliases are not allowed; write the value out", where)
        if getattr(event, "anchor", None) is not None:
            raise _fatal(place, "anchors (&name) are not allowed; write the value out", where)
        if (tag := getattr(event, "tag", None)) is not None:
            raise _fatal(place, f"tag {shown(tag)}: tags are not allowed; write plain data", where)
        if len(where) >= DEEPEST and isinstance(event, yaml.CollectionStartEvent):
            raise _fatal(place, f"nested more than {DEEPEST} levels deep")

    def _place(self, event: yaml.Event) -> FilePlace:
        mark = event.start_mark
        return FilePlace(self.source, mark.line + 1 if mark else 0)


def _plain(text: str) -> object:
    """Return what an unquoted scalar means: a word of YAML 1.2, a number of sensible length, or text."""
    if text in _WORDS:
        return _WORDS[text]
    if len(text) <= LONGEST_NUMBER:
        if _WHOLE.fullmatch(text):
            return int(text)
        if _DECIMAL.fullmatch(text):
            return Decimal(text)
    return text


def _syntax(error: yaml.MarkedYAMLError) -> str:
    """Say a syntax error in the parser's words and add what usually causes it."""
    problem = str(error.problem or error.context)
    hints = [hint for sign, hint in _HINTS.items() if sign in problem]
    return "; ".join([f"not valid YAML: {problem}", *hints])


def _fatal(place: FilePlace, message: str, where: Where = ()) -> ScenarioError:
    return ScenarioError([Mistake(place, path_text(where), message)])

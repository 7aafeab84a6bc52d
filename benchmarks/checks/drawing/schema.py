"""Documents drawn from their JSON schema: every key that it has, also one that it has since today.

What a schema says is enough for most keys: flags, enumerations, numbers, lists and sections of them are drawn from
it, quantities from its examples. A *rule*, by path, says what else a value must mean (the name of a layer that is
there); a key that neither can draw raises :class:`UndrawnError`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

LEFT_OUT = object()
"""What a rule returns for a key that is not written."""
MOST_ABOVE = 3
"""How far a drawn number is above the least that the schema allows."""
MOST_ENTRIES = 2

Json = Mapping[str, Any]
"""A schema, or a part of one."""


class UndrawnError(ValueError):
    """A key that neither the schema nor a rule says how to draw."""


@dataclass(slots=True)
class Drawing:
    """A document that is being drawn: from which schema, by which rules, and with which choices.

    ``often``: with which chance a key is written that may be left out. ``known`` is what rules tell one another;
    ``open`` the sections that are being written, the outermost first, each as far as it has come. The rule of a
    key of a section is asked in the order of the schema, so it finds what stands before it there.
    """

    schema: Json
    rules: Mapping[str, Rule]
    choice: Random
    often: float
    known: dict[str, Any] = field(default_factory=dict)
    open: list[dict[str, Any]] = field(default_factory=list)

    @property
    def here(self) -> dict[str, Any]:
        """The section that is being written."""
        return self.open[-1]

    def chance(self, share: float) -> bool:
        """Tell whether something happens that does so in this share of all cases."""
        return self.choice.random() < share

    def some(self, rows: list[Any], most: int) -> list[Any]:
        """Return one to so many different ones of these, in their order."""
        taken = self.choice.sample(range(len(rows)), self.choice.randint(1, min(most, len(rows))))
        return [rows[at] for at in sorted(taken)]

    def whole(self) -> dict[str, Any]:
        """Return a whole document. Raises UndrawnError."""
        return self.by_schema(self.schema, "")

    def value(self, part: Json, path: str) -> Any:  # noqa: ANN401 (whatever the schema says)
        """Return a value for a path: by its rule, or by the schema where it has none."""
        rule = self._rule(path)
        return self.by_schema(part, path) if rule is None else rule(self)

    def defined(self, name: str, path: str) -> Any:  # noqa: ANN401
        """Return what the schema defines under a name."""
        return self.by_schema({"$ref": f"#/$defs/{name}"}, path)

    def property(self, section: str, path: str) -> Any:  # noqa: ANN401
        """Return what the schema alone says of a key of a section that it defines."""
        return self.by_schema(self.schema["$defs"][section]["properties"][path.rpartition(".")[2]], path)

    def _rule(self, path: str) -> Rule | None:
        """Return the rule of a path, or the one of the last key in it wherever that stands."""
        return self.rules.get(path) or self.rules.get(f"*.{path.rpartition('.')[2]}")

    def by_schema(self, part: Json, path: str) -> Any:  # noqa: ANN401
        """Return a value that a part of the schema allows. Raises UndrawnError for one without a choice."""
        part = resolved(self.schema, part)
        if part.get("examples"):
            return self.choice.choice(part["examples"])
        options = [one for one in part.get("anyOf", part.get("oneOf", ())) if one.get("type") != "null"]
        if options:
            return self.by_schema(self.choice.choice(options), path)
        if "enum" in part or "const" in part:
            return self.choice.choice(part.get("enum", [part.get("const")]))
        if "properties" in part:
            return self._section(part, path)
        if part.get("type") == "array":
            return self._list(part, path)
        if part.get("type") == "boolean":
            return self.chance(0.5)
        if part.get("type") == "integer":
            least = part.get("minimum", part.get("exclusiveMinimum", -2) + 1)
            return self.choice.randint(least, min(least + MOST_ABOVE, part.get("maximum", least + MOST_ABOVE)))
        raise UndrawnError(
            f"{path or 'the document'}: no rule says how to draw it, and its schema does not either"
        )

    def _section(self, part: Json, path: str) -> dict[str, Any]:
        self.open.append({})
        for key, below in part["properties"].items():
            inner = f"{path}.{key}".lstrip(".")
            due = (
                key in part.get("required", ())
                or self._rule(inner)
                or "properties" in resolved(self.schema, below)
            )
            if due or self.chance(self.often):
                found = self.value(below, inner)
                if found is not LEFT_OUT:
                    self.here[key] = found
        return self.open.pop()

    def _list(self, part: Json, path: str) -> list[Any]:
        least = part.get("minItems", 0)
        number = self.choice.randint(max(1, least), max(MOST_ENTRIES, least))
        entries = [self.value(part["items"], f"{path}[]") for _ in range(number)]
        return (
            [one for at, one in enumerate(entries) if one not in entries[:at]] if least < MOST_ENTRIES else entries
        )


Rule = Callable[[Drawing], Any]


def sometimes(rule: Rule, share: float | None = None) -> Rule:
    """Return a rule for a key that may be left out: as often as others, or in this share of all cases."""
    return lambda at: rule(at) if at.chance(at.often if share is None else share) else LEFT_OUT


def one_of(*values: object) -> Rule:
    """Return a rule that chooses."""
    return lambda at: at.choice.choice(values)


def resolved(schema: Json, part: Json) -> Json:
    """Return a part of a schema, or what it refers to."""
    while "$ref" in part:
        part = schema["$defs"][part["$ref"].rpartition("/")[2]]
    return part


def paths(schema: Json) -> Iterator[str]:
    """Yield the path of every key that a document may have: ``a.b``, ``a[].b`` in lists, ``a.*.b`` under names."""
    yield from dict.fromkeys(path for path, _ in _parts(schema, schema, ""))


def _parts(schema: Json, part: Json, path: str) -> Iterator[tuple[str, Json]]:
    part = resolved(schema, part)
    for option in part.get("anyOf", part.get("oneOf", ())):
        yield from _parts(schema, option, path)
    for key, below in part.get("properties", {}).items():
        inner = f"{path}.{key}".lstrip(".")
        yield inner, below
        yield from _parts(schema, below, inner)
    for key, end in (("items", "[]"), ("additionalProperties", ".*")):
        if isinstance(part.get(key), dict):
            yield from _parts(schema, part[key], f"{path}{end}")


def written(schema: Json, document: object) -> Iterator[str]:
    """Yield what a document has: the path of every key, and ``path=value`` of enumerations and flags."""
    known = dict(_parts(schema, schema, ""))
    yield from dict.fromkeys(_written(schema, known, document, ""))


def _written(schema: Json, known: Mapping[str, Json], value: object, path: str) -> Iterator[str]:
    if isinstance(value, list):
        for entry in value:
            yield from _written(schema, known, entry, f"{path}[]")
    elif isinstance(value, dict):
        for key, below in value.items():
            inner = f"{path}.{key}".lstrip(".")
            inner = inner if inner in known else f"{path}.*"
            if inner in known:
                yield inner
            yield from _written(schema, known, below, inner)
    elif isinstance(value, bool) or value in _words(schema, known.get(path.removesuffix("[]"), {})):
        yield f"{path.removesuffix('[]')}={str(value).lower() if isinstance(value, bool) else value}"


def _words(schema: Json, part: Json) -> list[object]:
    """Return the values that a part of a schema lists, in it or in what it is a list of."""
    part = resolved(schema, part)
    below = [*part.get("anyOf", part.get("oneOf", ())), *([part["items"]] if "items" in part else ())]
    own = part.get("enum", [part["const"]] if "const" in part else [])
    return [*own, *(word for one in below for word in _words(schema, one))]


def words(schema: Json) -> Iterator[str]:
    """Yield ``path=value`` of every value that the schema lists."""
    for path, part in _parts(schema, schema, ""):
        yield from (f"{path}={word}" for word in _words(schema, part) if isinstance(word, str))

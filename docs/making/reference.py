"""Pages of the site that are made while it is built: names in Python, keys of scenario files and of JSON.

A hook of mkdocs (``mkdocs.yml``). What it writes comes from docstrings and schemas, and is as new as they are. The
documents of the literature are read from where they lie, and stand below ``literature/`` of the site.
"""

from __future__ import annotations

import inspect
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SCENARIOS = ROOT / "scenarios"
LITERATURE = ROOT / "literature"


def on_files(files: Any, config: Any) -> Any:  # noqa: ANN401 (mkdocs is there only while the site is built)
    """Add the pages to those that are read from ``docs/``."""
    from mkdocs.structure.files import File  # pyright: ignore[reportMissingImports] (an extra)

    for name, text in pages().items():
        files.append(File.generated(config, name, content=text))
    for name, path in read_pages().items():
        files.append(File.generated(config, name, content=path.read_text("utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:  # noqa: ANN401 (as above)
    """Return a page whose links lead to where pages are on the site."""
    return linked(markdown, page.file.src_uri)


def read_pages() -> dict[str, Path]:
    """Return the documents of the literature by their place on the site."""
    docs = LITERATURE / "docs"
    found = {f"literature/{path.relative_to(docs).as_posix()}": path for path in sorted(docs.rglob("*.md"))}
    return {"literature/README.md": LITERATURE / "README.md"} | found


def linked(markdown: str, name: str) -> str:
    """Return a page of the site, its links between files made into those between pages."""
    sites = {path: site for site, path in read_pages().items()}
    here = read_pages().get(name, ROOT / "docs" / name)

    def on_site(found: re.Match[str]) -> str:
        target = Path(os.path.normpath(here.parent / found[1]))
        if target in sites:
            place = sites[target]
        elif target.is_relative_to(ROOT / "docs"):
            place = target.relative_to(ROOT / "docs").as_posix()
        elif target == ROOT / "CONTRIBUTING.md":
            place = "extend.md"
        else:
            return found[0]
        return f"]({os.path.relpath(place, Path(name).parent)}{found[2]}"

    return re.sub(r"\]\((?!http)([^)#\s]+)(\)|#)", on_site, markdown)


def pages() -> dict[str, str]:
    """Return the pages that are made, by their place below ``docs/``."""
    return {
        "extend.md": (ROOT / "CONTRIBUTING.md").read_text("utf-8").replace("](docs/", "]("),
        "reference/python.md": python_page(),
        "reference/scenario.md": schema_page(
            "Every key of a scenario file", json.loads((SCENARIOS / "scenario.schema.json").read_text("utf-8"))
        ),
        "reference/json.md": schema_page(
            "Every key that `--json` writes", json.loads((SCENARIOS / "output.schema.json").read_text("utf-8"))
        ),
    }


def python_page() -> str:
    """Return what every public name of ``pipecut`` says of itself."""
    import pipecut

    lines = [
        "# Every name of `import pipecut`",
        "",
        "From the docstrings; [by subject, with examples](../python.md).",
    ]
    for name in pipecut.__all__:
        found = getattr(pipecut, name)
        lines += ["", f"## `{name}`", "", *_signature(name, found), *_said(found)]
        if inspect.isclass(found):
            for member, value in _members(found):
                lines += ["", f"**`{name}.{member}`**", "", *_said(value)]
    return "\n".join(lines) + "\n"


def _members(found: type) -> Iterator[tuple[str, Any]]:
    """Yield what a class defines itself and documents, without what Python makes for it."""
    for name, value in vars(found).items():
        unwrapped = getattr(value, "__func__", value)
        called = inspect.isfunction(unwrapped) or isinstance(value, property)
        if called and not name.startswith("_") and inspect.getdoc(unwrapped):
            yield name, unwrapped


def _signature(name: str, found: Any) -> list[str]:  # noqa: ANN401 (any name of pipecut)
    try:
        text = f"{name}{inspect.signature(found)}"
    except (TypeError, ValueError):
        return []
    return ["```python", text.replace("'", ""), "```", ""]


def _said(found: Any) -> list[str]:  # noqa: ANN401 (any name of pipecut)
    """Return a docstring as Markdown: two backticks are code there as here, and references are names."""
    text = inspect.getdoc(found) or ""
    for role in (":class:", ":func:", ":meth:", ":data:", ":attr:"):
        text = text.replace(role, "")
    return text.splitlines()


def schema_page(title: str, schema: Mapping[str, Any]) -> str:
    """Return a JSON schema as tables: one section an object, one row a key."""
    lines = [f"# {title}", "", "From the schema that ships in `scenarios/`."]
    parts = {str(schema.get("title", "top")): schema} if "properties" in schema else {}
    for name, part in (parts | dict(schema.get("$defs", {}))).items():
        lines += ["", f"## {name}", "", str(part.get("description", "")), ""]
        if "enum" in part:
            lines.append("One of " + ", ".join(f"`{one}`" for one in part["enum"]) + ".")
        if part.get("anyOf"):
            lines.append(f"{_kind(part)}.")
        rows = [_row(key, value, part) for key, value in part.get("properties", {}).items()]
        if rows:
            lines += ["| key | value | default | meaning |", "|---|---|---|---|", *rows]
    return "\n".join(lines) + "\n"


def _row(key: str, value: Mapping[str, Any], part: Mapping[str, Any]) -> str:
    default = "needed" if key in part.get("required", ()) else f"`{json.dumps(value.get('default'))}`"
    meaning = str(value.get("description", "")).replace("|", "\\|").replace("\n", " ")
    return f"| `{key}` | {_kind(value)} | {default} | {meaning} |"


def _kind(value: Mapping[str, Any]) -> str:
    """Return what a value may be, in words, with links to the objects of the same page."""
    if "$ref" in value:
        name = str(value["$ref"]).rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "const" in value:
        return f"`{json.dumps(value['const'])}`"
    if "enum" in value:
        return ", ".join(f"`{one}`" for one in value["enum"])
    for choice in ("anyOf", "oneOf", "allOf"):
        if choice in value:
            return " or ".join(dict.fromkeys(_kind(one) for one in value[choice]))
    kind = value.get("type", "anything")
    if kind == "array":
        return f"list of {_kind(value['items'])}" if "items" in value else "list"
    return " or ".join(kind) if isinstance(kind, list) else str(kind)

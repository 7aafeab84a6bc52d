"""The templates of ``report/templates``, and how they write what they are given.

Everything that a template shows is escaped, and what is no printable character shown as a question mark: both
happen where it is written, so no template can forget it. Only files of this package are marked as safe.
"""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined

from report import wording
from report.pictures.shapes import WIDTH, Picture, short, stage_colour

MARGIN = 10.0
"""Around a picture that is a file of its own."""

_VARIABLE = re.compile(r"(--[a-z0-9-]+):\s*([^;]+);")
_USE = re.compile(r"var\((--[a-z0-9-]+)\)")


def rendered(template: str, **given: object) -> str:
    """Return a template of this package, filled in. Raises jinja2.UndefinedError for what is not given."""
    return _environment().get_template(template).render(**given)


def standalone(picture: Picture) -> str:
    """Return a picture as a file of its own, in light colours, for any program that reads SVG."""
    return rendered("standalone.svg.j2", picture=picture, margin=MARGIN, style=plain_style())


@cache
def asset(name: str) -> str:
    """Return the text of a file of ``report/assets``."""
    return files("report").joinpath("assets", name).read_text(encoding="utf-8")


@cache
def plain_style() -> str:
    """Return the style of pictures with its light colours put in, as few programs know variables."""
    light, _, rest = asset("picture.css").partition("/* dark */")
    _, _, rules = rest.partition("/* rules */")
    colours = dict(_VARIABLE.findall(light))
    return _USE.sub(lambda found: colours[found[1]], rules)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("report"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "short": short,
        "count": wording.count,
        "colour": stage_colour,
        "exact": json.dumps,
        "shown": lambda value, unit: wording.FORMATS[unit](value),
    }
    environment.globals["width"] = WIDTH
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return environment


def _printable(value: object) -> object:
    """Return what a template shows, with question marks; markup, which is our own, and numbers as they are."""
    return wording.printable(value) if type(value) is str else value

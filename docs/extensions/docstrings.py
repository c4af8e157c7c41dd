"""Docstrings are plain sentences with `names` and indented programs; Sphinx is told so in its own markup."""

import re
from typing import Any

SECTION = re.compile(r"(Args|Attributes|Fields|Raises|Returns|Yields|Examples?|Notes?):$")


def marked(lines: list[str]) -> list[str]:
    """The same text as reStructuredText: names are code, |P| and x* are themselves, indented lines are programs."""
    out: list[str] = []
    program, section = False, False
    for line in lines:
        indented = line.startswith("    ")
        if line and not indented:
            program, section = False, bool(SECTION.match(line))
        if indented and not section and not program and (not out or not out[-1].strip()):
            program = True
            out += ["::", ""]
        out.append(line if program else escaped(line))
    return out


def escaped(line: str) -> str:
    """One line; what stands between backticks stays."""
    parts = re.split(r"(`+[^`]+`+)", line)
    return "".join(
        f"``{part.strip('`')}``" if i % 2 else re.sub(r"([\\*|_])", r"\\\1", part) for i, part in enumerate(parts)
    )


def process(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Before napoleon reads `Args:`."""
    lines[:] = marked(lines)


def signature(
    app: Any, what: str, name: str, obj: Any, options: Any, given: str | None, returned: str | None
) -> tuple[str | None, str | None] | None:
    """Engines take the keys of a stage, which the page of the recipe lists."""
    from ptymesh.engines import Engine

    if isinstance(obj, type) and issubclass(obj, Engine):
        return "(**keys)", None
    return None


def setup(app: Any) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", process, priority=100)
    app.connect("autodoc-process-signature", signature)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

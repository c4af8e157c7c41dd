"""Equations as MathML, made while the site is built, with the font that they need: browsers draw them without a script.

The font is STIX Two Math, which the package ziamath brings along; without one, parentheses and sums do not grow.
"""

import shutil
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert

FONT = "STIXTwoMath-Regular.ttf"  # site.css names it


def inline(translator: Any, node: nodes.math) -> None:
    """One within a sentence."""
    translator.body.append(convert(node.astext()))
    raise nodes.SkipNode


def block(translator: Any, node: nodes.math_block) -> None:
    """One on a line of its own, which can be scrolled where it is wider than the screen."""
    translator.body.append(f'<div class="equation">{convert(node.astext(), display="block")}</div>')
    raise nodes.SkipNode


def bring_font(app: Any, error: Exception | None) -> None:
    """Puts the font beside the style sheet."""
    if error is None and app.builder.format == "html":
        with as_file(files("ziamath") / "fonts" / FONT) as font:
            shutil.copyfile(font, Path(app.outdir) / "_static" / FONT)


def setup(app: Any) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    app.connect("build-finished", bring_font)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

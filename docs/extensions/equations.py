"""Equations as MathML, made while the site is built, with the font that they need: browsers draw them without a script.

The font is STIX Two Math, which the package ziamath brings along; without one, parentheses and sums do not grow.
"""

import re
import shutil
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert

FONT = "STIXTwoMath-Regular.ttf"  # site.css names it


def mathml(equation: str, display: str = "inline") -> str:
    """MathML of an equation, in which every second bar of a modulus or a norm closes what the one before has opened."""
    forms: dict[str, str] = {}

    def formed(found: re.Match[str]) -> str:
        bar = found[1]
        forms[bar] = "postfix" if forms.get(bar) == "prefix" else "prefix"
        return f'<mo form="{forms[bar]}" stretchy="false">{bar}</mo>'

    return re.sub("<mo>(&#x0007C;|&#x02016;)</mo>", formed, convert(equation, display=display))


def inline(translator: Any, node: nodes.math) -> None:
    """One within a sentence."""
    translator.body.append(mathml(node.astext()))
    raise nodes.SkipNode


def block(translator: Any, node: nodes.math_block) -> None:
    """One on a line of its own, which can be scrolled where it is wider than the screen."""
    translator.body.append(f'<div class="equation">{mathml(node.astext(), display="block")}</div>')
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

"""Draws the packages as the import contract of pyproject.toml has them: python docs/packages.py

Written to docs/figures/packages.svg. A layer knows those below it; what stands side by side does not know each other.
What each one is for is the first sentence of its docstring.
"""

from __future__ import annotations

import ast
import re
import sys
import textwrap
import tomllib
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[1]
DRAWING = Path(__file__).with_name("figures") / "packages.svg"
WIDTH, GAP, LINE, PAD, HEAD = 960, 8, 15, 10, 18
#: Width of a letter of the small text, on average.
LETTER = 6.1
COLOURS = ("#14455f", "#175a76", "#1c6f83", "#288088", "#36857c", "#45846a")


def layers() -> list[list[str]]:
    """Names in each layer, from the command line down."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contract, *_ = project["tool"]["importlinter"]["contracts"]
    return [re.findall(r"\w+", layer) for layer in contract["layers"]]


def purpose(name: str) -> str:
    """First sentence of what a package or module says of itself."""
    package = ROOT / "src" / "ptymesh" / name
    file = package / "__init__.py" if package.is_dir() else package.with_suffix(".py")
    said = " ".join((ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").split())
    return re.split(r"(?<=[a-z)])\.(?: |$)|[;:] ", said)[0].rstrip(".")


def drawing() -> str:
    """The picture."""
    found, y = layers(), 0.0
    parts = []
    for number, names in enumerate(found):
        wide = (WIDTH - GAP * (len(names) - 1)) / len(names)
        texts = [textwrap.wrap(purpose(name), int((wide - 2 * PAD) / LETTER)) for name in names]
        single = len(names) == 1
        high = HEAD + 2 * PAD if single else HEAD + 2 * PAD + LINE * max(map(len, texts))
        colour = COLOURS[min(number * len(COLOURS) // len(found), len(COLOURS) - 1)]
        for place, (name, lines) in enumerate(zip(names, texts, strict=True)):
            x = place * (wide + GAP)
            top = y + PAD + 13
            parts.append(
                f'<rect x="{x:.0f}" y="{y:.0f}" width="{wide:.0f}" height="{high:.0f}" rx="5" fill="{colour}"/>'
            )
            parts.append(f'<text x="{x + PAD:.0f}" y="{top:.0f}" class="n">{escape(name)}</text>')
            if single:
                shown = textwrap.shorten(purpose(name), int((wide - 190) / LETTER), placeholder=" ...")
                parts.append(f'<text x="{x + 170:.0f}" y="{top:.0f}">{escape(shown)}</text>')
            else:
                for row, line in enumerate(lines):
                    parts.append(f'<text x="{x + PAD:.0f}" y="{top + LINE * (row + 1) + 3:.0f}">{escape(line)}</text>')
        y += high + GAP
    style = (
        "text{font:11.5px ui-sans-serif,Helvetica,Arial,sans-serif;fill:#fff}"
        ".n{font:600 14px ui-monospace,Menlo,Consolas,monospace}"
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y - GAP:.0f}" role="img">',
            "<title>Packages of ptymesh: each layer imports only from those below it</title>",
            f"<style>{style}</style>",
            *parts,
            "</svg>\n",
        ]
    )


if __name__ == "__main__":
    DRAWING.write_text(drawing(), encoding="utf-8")
    sys.stdout.write(f"{DRAWING}\n")

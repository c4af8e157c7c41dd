"""Fragments of HTML: facts in a table, pictures beside it, in the notebook's own colours, light or dark."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from html import escape

from matplotlib.figure import Figure

#: Dots per inch of thumbnails, and the height of a row of them in inches.
DPI, HEIGHT = 80, 2.3
_CELL = "text-align:left;padding:1px 10px 1px 0;border:none;background:none"


def fragment(title: str, facts: Mapping[str, str], picture: Figure | None, below: str = "") -> str:
    """Return the HTML of a title, facts and a picture.

    Args:
        title: text.
        facts: values by name; empty ones are left out.
        picture: beside the facts.
        below: HTML; everything else is text and is escaped.
    """
    rows = "".join(
        f'<tr style="background:none"><th style="{_CELL};font-weight:normal;opacity:0.7">{escape(name)}</th>'
        f'<td style="{_CELL}">{escape(value)}</td></tr>'
        for name, value in facts.items()
        if value
    )
    image = "" if picture is None else image_of(picture, title)
    return (
        f'<div style="font-size:90%"><b>{escape(title)}</b>'
        '<div style="display:flex;flex-wrap:wrap;align-items:flex-start;gap:16px">'
        f'<table style="border-collapse:collapse;margin:4px 0">{rows}</table>{image}</div>{below}</div>'
    )


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return the HTML of a table of text."""
    head = "".join(f'<th style="{_CELL};opacity:0.7">{escape(name)}</th>' for name in columns)
    body = "".join(
        "<tr>" + "".join(f'<td style="{_CELL}">{escape(cell)}</td>' for cell in row) + "</tr>" for row in rows
    )
    return f'<table style="border-collapse:collapse;margin:4px 0"><tr>{head}</tr>{body}</table>'


def image_of(figure: Figure, alt: str) -> str:
    """Return the HTML of a figure as an embedded PNG."""
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=DPI)
    data = base64.b64encode(stream.getvalue()).decode("ascii")
    return f'<img alt="{escape(alt)}" style="max-width:100%" src="data:image/png;base64,{data}">'


def pixels(pixel_size_m: Sequence[float] | None) -> str:
    """Return the size of an object pixel in words; empty where it is unknown."""
    from ptymesh.plot.style import length_name

    if pixel_size_m is None:
        return ""
    y, x = pixel_size_m
    return length_name(y) if abs(y - x) < 1e-3 * y else f"{length_name(y)} x {length_name(x)} (y, x)"

"""A file alone becomes a recipe: how it is read, what is done to its patterns, and what has to be asked for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ptymesh.auto.layout import guessed_keys
from ptymesh.errors import BadInput
from ptymesh.io import load_measurement
from ptymesh.io.inspection import Summary, summarise
from ptymesh.io.options import DataOptions, PositionOptions
from ptymesh.io.samples import PREFIX, located
from ptymesh.measurement import Measurement
from ptymesh.run.recipe import AUTO, apply_overrides

#: Views of a scan that are looked at.
LOOKED_AT = 400
#: Bytes of a file by which text is told from data.
HEAD = 4096

Reasons = dict[str, list[str]]


def is_data(path: Path) -> bool:
    """Whether what stands in the place of a recipe is a data set: no text, or the name of a sample."""
    if str(path).startswith(PREFIX):
        return True
    try:
        if not path.is_file():  # a pipe would be waited for
            return False
        with path.open("rb") as file:
            head = file.read(HEAD)
    except OSError:
        return False  # which will be said of it as a recipe
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.end < len(head) or b"\0" in head
    return b"\0" in head


def named_after(path: Path) -> Path:
    """The folder for what comes of a data set: its name without endings, in the working folder."""
    name = str(path).removeprefix(PREFIX)
    plain = re.sub(r"(\.[A-Za-z][A-Za-z0-9]{0,4})+$", "", Path(name).name)
    return Path(plain or "out")


def described(path: Path, overrides: Sequence[str] = (), out: Path | None = None) -> tuple[dict[str, Any], Reasons]:
    """A recipe's plain dicts for this data set, with stages to be found, and why they say what they say.

    overrides: key=VALUE of a recipe, which nothing here changes. Raises BadInput, which names the key, where the file
    does not say what must be known.
    """
    raw: dict[str, Any] = {"data": {"path": str(path)}, "stages": AUTO}
    raw["output"] = {"dir": str(named_after(path) if out is None else out)}
    raw = apply_overrides(raw, overrides)
    if not isinstance(raw.get("data"), dict) or not isinstance(raw.get("output"), dict):
        return raw, {}  # which will be refused as any recipe's would be
    if out is not None:
        raw["output"]["dir"] = str(out)
    reasons: Reasons = {}
    given = DataOptions.parse(raw["data"], "data")
    if given.keys is None:
        found = guessed_keys(located(given.path))
        if found is not None:
            raw["data"]["keys"], why = found
            reasons["data.keys"] = [why]
    _look(raw, reasons)
    return raw, reasons


def _look(raw: dict[str, Any], reasons: Reasons) -> None:
    """Choices about detector and window, from what some of the views look like."""
    data, positions = raw["data"], raw.get("positions") or {}
    where = PositionOptions.parse(positions, "positions")
    scan = load_measurement(DataOptions.parse(data, "data"), where)
    step = -(-scan.views // LOOKED_AT)
    if "invalid" not in data and (why := _invalid(scan, step)):
        data["invalid"] = "missing"
        reasons["data.invalid"] = [why]
    some = dict(data)
    if "views" not in some and step > 1:
        some["views"] = {"step": step}
    seen = summarise(load_measurement(DataOptions.parse(some, "data"), where))
    for key, value, why in _choices(seen):
        if key not in data:
            data[key] = value
            reasons[f"data.{key}"] = [why]


def _invalid(scan: Measurement, step: int) -> str:
    """Why NaN and negative values are taken as missing; empty where there are none."""
    try:
        for view in range(0, scan.views, max(1, step)):
            scan.patterns.read(np.array([view]))
    except BadInput as error:
        return str(error)
    return ""


def _choices(seen: Summary) -> list[tuple[str, Any, str]]:
    """Key of `data`, value, and why."""
    found: list[tuple[str, Any, str]] = []
    for sentence in seen.suspicious:
        if "set data.saturation" in sentence:
            found.append(("saturation", float(seen.peak_counts), sentence))
        elif "set data.centre to find" in sentence:
            found.append(("centre", "find", sentence))
        elif "set data.dc" in sentence:
            found.append(("dc", "corner", sentence))
    return found

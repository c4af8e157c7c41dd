"""Loading of a data set named on the command line, with `--set` as in a recipe, for `inspect` and `convert`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ptymesh.io.options import DataOptions, PositionOptions
    from ptymesh.measurement import Measurement

GROUPS = ("data", "positions")


def load_dataset(file: Path, settings: Sequence[str]) -> Measurement:
    """Load the data of a file, or of a recipe, with `data.key=value` and `positions.key=value` applied.

    Raises:
        BadInput: the file or a setting cannot be used.
    """
    from ptymesh.io import load_measurement

    if _is_recipe(file):
        from ptymesh.recipe.scans import load_scan
        from ptymesh.recipe.schema import load_recipe

        return load_scan(load_recipe(file, settings))

    _, data, positions = data_options_of(file, settings)
    return load_measurement(data, positions)


def data_options_of(
    source: Path | dict[str, Any], settings: Sequence[str]
) -> tuple[dict[str, Any], DataOptions, PositionOptions]:
    """Return the groups `data` and `positions`, as plain dicts and checked.

    Args:
        source: a data set, or the two groups as plain dicts.
        settings: `data.KEY=VALUE` and `positions.KEY=VALUE`.

    Raises:
        BadInput: A key or a value that cannot be used.
    """
    from ptymesh.io.options import DataOptions, PositionOptions

    raw = source if isinstance(source, dict) else {"data": {"path": str(source)}, "positions": {}}
    for setting in settings:
        _apply(raw, setting)
    data = DataOptions.parse(raw["data"], "data")
    return raw, data, PositionOptions.parse(raw["positions"], "positions")


def _is_recipe(file: Path) -> bool:
    """Return True if a file is short text with a key `data` or `scans`; data sets are binary."""
    if not file.is_file() or file.stat().st_size > 1 << 20:
        return False
    content = file.read_bytes()
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return "\0" not in text and any(line.startswith(("data:", "scans:")) for line in text.splitlines())


def _apply(raw: dict[str, Any], setting: str) -> None:
    """Set one KEY=VALUE in nested dicts."""
    from ptymesh.errors import BadInput
    from ptymesh.recipe.schema import put
    from ptymesh.recipe.yaml_text import parsed
    from ptymesh.sentences import quote

    key, equals, text = setting.partition("=")
    parts = key.strip().split(".")
    if not equals or len(parts) < 2 or not all(parts) or parts[0] not in GROUPS:
        raise BadInput(f"--set {quote(setting)} is not data.KEY=VALUE or positions.KEY=VALUE; write --set data.bin=2.")
    put(raw, key.strip(), parsed(text, f"The value of --set {quote(setting)}"), "--set")

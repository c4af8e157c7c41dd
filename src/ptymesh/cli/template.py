"""A recipe for a data set of which something is missing: what its file says, and, as comments, what it does not say."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ptymesh.io.options import DataOptions
    from ptymesh.io.scan import RawScan

#: What each key asks for, with a value as an example.
QUESTIONS = {
    "radiation": ("photon", "or electron"),
    "energy_eV": ("8.8e+3", "photon energy, or kinetic energy of the electrons"),
    "distance_m": ("1.92", "from sample to detector, or the camera length"),
    "detector_pixel_m": ("75.0e-6", "with distance_m and the energy; or object_pixel_m alone"),
}


def recipe_template(file: Path, settings: Sequence[str]) -> str:
    """Return a recipe for a data set as YAML, with what the file does not say as comments.

    Args:
        file: the data set.
        settings: `data.KEY=VALUE` and `positions.KEY=VALUE`, which come before what the file says.

    Raises:
        BadInput: The file is missing, damaged, or of no format in which patterns could be named.
    """
    import yaml

    from ptymesh.cli.dataset import data_options_of
    from ptymesh.io.load import open_scan
    from ptymesh.io.samples import located

    raw, data, _ = data_options_of(file, settings)
    data = data.model_copy(update={"path": located(data.path)})
    doubts = []
    if data.keys is None:
        from ptymesh.auto.dataset_names import guessed_keys

        key_guesses = guessed_keys(data.path)
        if key_guesses is not None:
            raw["data"]["keys"], why = key_guesses
            doubts.append(f"data.keys is a guess: {why}")
            _, data, _ = data_options_of(raw, ())
    scan = open_scan(data)
    lines = [f"# {text}" for text in (*doubts, *scan.notes)]
    groups = {"data": dict(raw["data"]), "positions": dict(raw["positions"])}
    lines += yaml.safe_dump({"data": groups["data"]}, sort_keys=False).splitlines()
    lines += [f"  {line}" for line in _optics(scan, data)]
    lines += [*_positions(scan, groups["positions"]), ""]
    return "\n".join(lines)


def _optics(scan: RawScan, data: DataOptions) -> list[str]:
    """Return keys of beam and detector: as comments, with the file's values or with questions."""
    optics = scan.optics.overridden(data)
    count, height, width = scan.patterns.shape
    lines = [f"# the file holds {count} patterns of {height} x {width} pixels"]
    if optics.object_pixel_m is not None:
        y, x = optics.object_pixel_m
        lines.append(f"# object_pixel_m: [{y:.6g}, {x:.6g}]  # follows from the file")
    for key, (example, meaning) in QUESTIONS.items():
        if getattr(data, key) is not None or (key == "energy_eV" and data.wavelength_m is not None):
            continue
        value: object = getattr(optics, key)
        if key == "energy_eV" and value is None and optics.wavelength_m is not None:
            lines.append(f"# wavelength_m: {optics.wavelength_m:.6g}  # of the file")
        elif value is not None:
            text = f"[{value[0]:.6g}, {value[1]:.6g}]" if isinstance(value, tuple) else f"{value}"
            lines.append(f"# {key}: {text}  # of the file")
        elif optics.object_pixel_m is None or key in ("radiation", "energy_eV"):
            lines.append(f"# {key}: {example}  # not in the file: {meaning}")
    return lines


def _positions(scan: RawScan, keys: dict[str, object]) -> list[str]:
    """Return the group `positions`: what the recipe says, and what it must say yet."""
    import yaml

    lines = yaml.safe_dump({"positions": keys}, sort_keys=False).splitlines() if keys else []
    if scan.positions is not None:
        unit = f"they are taken as {scan.unit}" if not scan.unit_doubt else scan.unit_doubt
        return [*lines, f"# the file has {len(scan.positions)} positions; {unit}"]
    if "raster" in keys:
        return lines
    shape = f"shape: {list(scan.raster)}, " if scan.raster is not None else "shape: [ROWS, COLUMNS], "
    missing = "the scan's step" if scan.raster is not None else "the scan's shape and step, or data.keys.positions"
    return [*(lines or ["# positions:"]), f"#   raster: {{{shape}step_m: 5.0e-9}}  # not in the file: {missing}"]

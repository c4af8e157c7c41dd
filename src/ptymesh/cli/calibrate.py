"""ptymesh calibrate: numbers of an electron microscope from its patterns, and a recipe with them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ptymesh.cli.launching import LaunchOptions, Settings, folder
from ptymesh.cli.quantities import parse_angle, parse_energy, parse_length

if TYPE_CHECKING:
    from ptymesh.calibrate import Calibration


def command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Electron scan, or a recipe that names one.")],
    energy: Annotated[
        float | None,
        typer.Option(
            metavar="EV", parser=parse_energy, help="Kinetic energy of the electrons, where the file is silent."
        ),
    ] = None,
    semiangle: Annotated[
        float | None,
        typer.Option(
            metavar="RAD", parser=parse_angle, help="Half-angle of the beam's cone; sets the size of a pixel."
        ),
    ] = None,
    step: Annotated[
        float | None,
        typer.Option(
            metavar="M", parser=parse_length, help="Step of the scan, such as 0.4 A, where the file is silent."
        ),
    ] = None,
    lattice: Annotated[
        float | None,
        typer.Option(
            metavar="M",
            parser=parse_length,
            help="Spacing of the planes of the innermost Bragg discs, such as 1.92 A; sets the size of a pixel.",
        ),
    ] = None,
    c10: Annotated[
        str, typer.Option(metavar="SIGN", help="Known sign of C10 (C1, -defocus) in the middle of the sample.")
    ] = "unknown",
    phase: Annotated[
        str, typer.Option(metavar="bright|dark", help="Sign of the phase of features, where C10 is unknown.")
    ] = "bright",
    set_: Settings = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", parser=folder, help="Output folder. [default: NAME-calibration]")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files of an earlier calibration.")] = False,
    ranks: Annotated[
        int | None, typer.Option("--ranks", "-n", metavar="N", help="Processes that share the reading of patterns.")
    ] = None,
) -> None:
    """Measure disc, pixel size, descan, orientation, defocus and dose of an electron scan, and write a recipe.

    The recipe says in comments where each number comes from; one figure shows what was measured, and virtual images are
    written as PNG and TIFF.
    """
    from ptymesh.calibrate.files import RECIPE
    from ptymesh.distributed.rank_info import world
    from ptymesh.errors import BadInput
    from ptymesh.paths import named_after

    if c10 not in ("negative", "positive", "unknown"):
        raise BadInput(f"--c10 is {c10!r}; give negative, positive or unknown.")
    if phase not in ("bright", "dark"):
        raise BadInput(f"--phase is {phase!r}; give bright or dark.")
    target = out or Path(f"{named_after(file)}-calibration")
    if (target / RECIPE).exists() and not force and world().rank == 0:
        raise BadInput(f"{target / RECIPE} exists; give another --out, or replace it with --force.")
    if ranks is not None and world().size == 1:
        how = LaunchOptions(ranks=ranks, device="cpu")
        how.check()
        if ranks > 1:
            numbers = {"energy": energy, "semiangle": semiangle, "step": step, "lattice": lattice}
            arguments = ["calibrate", str(file), "--c10", c10, "--phase", phase, "--out", str(target)]
            arguments += [part for name, x in numbers.items() if x is not None for part in (f"--{name}", repr(x))]
            arguments += [part for one in set_ or () for part in ("--set", one)] + (["--force"] if force else [])
            from ptymesh.cli.running import start_ranks

            if status := start_ranks(arguments, how, target):
                raise typer.Exit(status)
            return
    raw = _described(file, set_ or (), energy, semiangle, step)
    _calibrate(raw, target, c10, phase, lattice)


def _calibrate(raw: dict[str, Any], target: Path, c10: str, phase: str, lattice: float | None) -> None:
    """Calibrate a scan on all ranks that there are; the first one writes the files, and prints what was found."""
    from ptymesh.calibrate import calibrate
    from ptymesh.calibrate.files import write_files
    from ptymesh.distributed.joining import join

    place = join("cpu")
    with place.heartbeat.doing("read"):
        calibration = calibrate(raw, c10=c10, phase=phase, lattice_m=lattice, world=place)  # type: ignore[arg-type] # checked
    paths = place.on_all_ranks(
        lambda: [] if place.rank else write_files(calibration, target), "writing the calibration"
    )
    place.close()
    if not paths:
        return
    _print(calibration)
    typer.echo(f"\n{paths[1]}: what was measured; {len(paths) - 2} virtual images beside it")
    typer.echo(f"{paths[0]}: ptymesh run {paths[0]}")


def _described(
    file: Path, settings: list[str] | tuple[()], energy: float | None, semiangle: float | None, step: float | None
) -> dict[str, Any]:
    """Return the recipe of a file, or a recipe's own, with the numbers of the options."""
    from ptymesh.paths import is_data
    from ptymesh.recipe.schema import apply_overrides, put, raw_recipe

    raw: dict[str, Any] = {"data": {"path": str(file)}} if is_data(file) else dict(raw_recipe(file))
    if energy is not None:
        put(raw, "data.energy_eV", energy, "--energy")
    if step is not None:
        put(raw, "positions.raster.step_m", step, "--step")
    if semiangle is not None:
        start = (raw.get("probe") or {}).get("start")
        if not isinstance(start, dict) or start.get("kind") != "electron":
            put(raw, "probe.start", {"kind": "electron"}, "--semiangle")
        put(raw, "probe.start.semiangle_rad", semiangle, "--semiangle")
    return apply_overrides(raw, settings)


def _print(calibration: Calibration) -> None:
    from ptymesh.calibrate.recipe import lattice_sentence, lens_sentence, orientation_sentence, twin_sentence

    disc, descan, lens = calibration.disc, calibration.descan, calibration.lens
    rows, columns = calibration.grid.shape
    step = " x ".join(f"{d:.4g}" for d in calibration.grid.step_m)
    typer.echo(
        f"Scan: {rows} x {columns}{'' if calibration.grid.is_raster else ' (laid over the positions)'}, step {step} m"
    )
    typer.echo(
        f"Disc: centre {disc.centre[0]:.2f}, {disc.centre[1]:.2f} (y, x), radius {disc.radius:.2f} px = "
        f"{calibration.semiangle_rad:.5g} rad, {disc.ellipticity:.1%} longer than wide"
    )
    if calibration.lattice is not None:
        typer.echo(f"Lattice: {lattice_sentence(calibration.lattice)}")
    typer.echo(f"Object pixel: {calibration.pixel_m[0]:.5g} x {calibration.pixel_m[1]:.5g} m (y, x)")
    typer.echo(f"Descan: {descan.wander_px:.2g} px over the scan, +- {descan.scatter_px:.2g} px")
    typer.echo(f"Dose: {calibration.counts_per_view:.4g} counts per pattern, {calibration.dose_e_per_A2:.4g} e/A^2")
    transposed = "transposed" if lens.transpose else "not transposed"
    typer.echo(
        f"Orientation: {transposed}, rotation {lens.rotation_deg:.2f} degrees. {orientation_sentence(calibration)}"
    )
    typer.echo(f"Twin: {twin_sentence(calibration)}")
    typer.echo(f"Lens: {lens_sentence(calibration)}")

"""ptymesh simulate: data sets with known truth."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ptymesh.cli.quantities import parse_energy, parse_length


def command(
    out: Annotated[
        Path, typer.Argument(metavar="OUT.cxi", help="Data set to write (.cxi or .h5); the truth goes beside it.")
    ],
    kind: Annotated[
        str, typer.Option(help="xray (far field), near (X-ray near field), electron (slices) or crystal (its atoms).")
    ] = "xray",
    views: Annotated[int, typer.Option(help="Number of scan positions.")] = 400,
    window: Annotated[int, typer.Option(help="Side of the detector in pixels.")] = 128,
    scan: Annotated[str, typer.Option(help="fermat, raster or jitter.")] = "fermat",
    overlap: Annotated[
        float | None, typer.Option(help="Of neighbours, as a share of the beam's width. [default: by kind]")
    ] = None,
    object_size: Annotated[
        int | None, typer.Option(metavar="PX", help="Side of the object that the scan covers, instead of the overlap.")
    ] = None,
    density_ratio: Annotated[float, typer.Option(help="Density of the scan at its right edge over its left.")] = 1.0,
    photons: Annotated[
        float | None, typer.Option(help="Photons (electrons) in each view; 0 leaves out the noise. [default: by kind]")
    ] = None,
    position_error: Annotated[float, typer.Option(help="Uniform error of the positions, +- pixels.")] = 0.0,
    modes: Annotated[int, typer.Option(help="Incoherent probe modes.")] = 1,
    slices: Annotated[int | None, typer.Option(help="Object slices. [default: 1, electron 2, crystal 6]")] = None,
    object_modes: Annotated[
        int, typer.Option(help="States of the object in each exposure, in which it is deformed otherwise.")
    ] = 1,
    displacement: Annotated[
        float, typer.Option(metavar="PX", help="With --object-modes: rms displacement of a pixel along either axis.")
    ] = 1.0,
    tilt: Annotated[
        tuple[float, float],
        typer.Option(metavar="Y X", help="Radians by which the axis of the slices leans against the beam."),
    ] = (0.0, 0.0),
    background: Annotated[float, typer.Option(help="Counts added to every pixel.")] = 0.0,
    defect: Annotated[str, typer.Option(help="Masked part of the detector: none, beamstop, module or hot.")] = "none",
    energy: Annotated[
        float | None,
        typer.Option(metavar="EV", parser=parse_energy, help="Of the radiation, such as 8.5 keV. [default: by kind]"),
    ] = None,
    pixel: Annotated[
        float | None,
        typer.Option(metavar="M", parser=parse_length, help="Object pixel, such as 20 nm. [default: by kind]"),
    ] = None,
    surface: Annotated[
        tuple[float, float],
        typer.Option(metavar="Y X", help="Degrees by which a surface leans from the beam that it reflects."),
    ] = (0.0, 0.0),
    focus_distance: Annotated[
        float | None,
        typer.Option(metavar="M", parser=parse_length, help="Near field: from the beam's focus to the sample."),
    ] = None,
    crystal: Annotated[
        str,
        typer.Option(
            metavar="YAML",
            help="With --kind crystal: structure, beam and dose, such as {structure: silicon, zone: [1, 1, 0]}.",
        ),
    ] = "{}",
    optics: Annotated[
        str, typer.Option(metavar="YAML", help="Operators between probe and detector, such as {view_defocus: true}.")
    ] = "{}",
    unknown_errors: Annotated[
        str,
        typer.Option(
            metavar="YAML",
            help="By up to how much their unknowns differ from their start, in metres, pixels or whatever `optics` of "
            "the recipe says of each, such as {defocus: 1e-6}.",
        ),
    ] = "{}",
    further_scans: Annotated[
        str,
        typer.Option(
            metavar="YAML",
            help="Further scans of the same object, each by what differs from the first, such as "
            "[{shift_px: [1.6, -1.2], rotation_deg: 0.5, defocus_m: 20e-6}]; they go to OUT-2.cxi and so on.",
        ),
    ] = "[]",
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 0,
    compression: Annotated[
        str, typer.Option(help="gzip, or none: larger, but any pattern is read at the disk's speed.")
    ] = "gzip",
    stream: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Then play it, as a detector would, such as tcp://127.0.0.1:5599."),
    ] = None,
    rate: Annotated[float, typer.Option(metavar="HZ", help="With --stream: frames per second.")] = 1000.0,
    protocol: Annotated[
        str,
        typer.Option(help="With --stream: plain, or dectris (Stream V2; positions go to a file beside the data set)."),
    ] = "plain",
    force: Annotated[bool, typer.Option("--force", help="Replace files that exist.")] = False,
) -> None:
    """Simulate a data set with known truth, and write it as CXI; with --stream, also play it for `ptymesh live`."""
    from ptymesh.cli.stream import check_stream, play
    from ptymesh.errors import BadInput
    from ptymesh.io import load_measurement
    from ptymesh.io.options import DataOptions
    from ptymesh.recipe.yaml_text import parsed
    from ptymesh.run.simulate_file import write
    from ptymesh.simulate import checked
    from ptymesh.simulate.options import options_by_scan

    if compression not in ("gzip", "none"):
        raise BadInput(f"--compression is {compression}; it should be gzip or none.")
    check_stream(rate, protocol)
    crystal_options = parsed(crystal, "--crystal")
    if crystal_options and kind != "crystal":
        raise BadInput(f"--crystal is given for --kind {kind}; give --kind crystal with it, or leave it out.")
    options = checked(
        kind=kind,
        views=views,
        window=window,
        scan=scan,
        overlap=overlap,
        object_px=object_size,
        density_ratio=density_ratio,
        photons_per_view=photons or None,
        noise=photons != 0,
        position_error_px=position_error,
        modes=modes,
        slices=slices,
        object_modes=object_modes,
        displacement_px=displacement,
        tilt_rad=tilt,
        background_counts=background,
        defect=defect,
        energy_eV=energy,
        pixel_m=pixel,
        surface_deg=surface,
        crystal=crystal_options if kind == "crystal" else None,
        focus_distance_m=focus_distance,
        optics=parsed(optics, "--optics"),
        unknown_errors=parsed(unknown_errors, "--unknown-errors"),
        further_scans=parsed(further_scans, "--further-scans"),
        seed=seed,
    )
    *every, truth = write(options, out, force=force, compression="gzip" if compression == "gzip" else None)
    data = every[0]
    for path, one in zip(every, options_by_scan(options), strict=True):
        print(f"{path}: {one.views} views of {window} x {window} pixels, {kind}, seed {one.seed}")
    print(f"{truth}: the object, probe and positions they were made from")
    if stream is not None:
        play(load_measurement(DataOptions(path=data)), stream, rate, protocol, data.with_suffix(".positions.txt"))

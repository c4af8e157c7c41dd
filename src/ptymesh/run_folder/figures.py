"""All figures of a result, written to a folder; and what a run makes of its result once that is safe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from ptymesh import plot
from ptymesh.compare import PowerSpectrum, illuminated, illumination_of_result, moves_of_result, power_spectrum
from ptymesh.errors import BadInput, PtymeshError
from ptymesh.files import writing
from ptymesh.io.results import Result
from ptymesh.physics.beam.pupil import fit_lens, pupil_mask, pupil_of
from ptymesh.plot.objects import DIM
from ptymesh.run_folder.caustic import wavelength_of

if TYPE_CHECKING:
    from ptymesh.run_folder.patterns import PatternPairs

#: Pixels of the longest side of a phase whose power spectrum is drawn; of larger objects the middle is taken. The other
#: is the least for several slices, as unwrapping one of 1200 x 1200 takes more than a second.
LONGEST_PHASE, LONGEST_SLICE = 1200, 400

#: Makes a figure.
Make = Callable[[], Figure]


def write_figures(
    result: Result,
    folder: Path,
    *,
    prefix: str = "",
    suffix: str = "png",
    patterns: PatternPairs | None = None,
) -> list[Path]:
    """Write every figure that the result has something for.

    Args:
        result: what is drawn.
        folder: where the files go; it is made if need be.
        prefix: put before the names of the files.
        suffix: png, pdf or svg.
        patterns: of `compared_patterns`; None: no such figure.

    Returns:
        The paths written.

    Raises:
        BadInput: the folder cannot be written to, or a name is taken by what is no file.
        PtymeshError: the disk refuses.
    """
    light = illumination_of_result(result)

    paths = []
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, make in _named_figures(result, light, patterns):
            paths.append(folder / f"{prefix}{name}.{suffix}")
            plot.save_figure(make(), paths[-1])
    return paths


def write_products(path: Path, *, figures: bool, writers: Sequence[str], patterns: PatternPairs | None) -> list[Path]:
    """Draw the figures of a run's result, have its writers write, and return the paths of what is there.

    The result is safe by then: where something fails, standard error and the run's log say so, and the rest goes on.
    Each reads the result anew, as a writer may change what it is given.

    Args:
        path: of the result.
        figures: whether they are drawn.
        writers: names of those that write further files, as in `run.writers.WRITERS`.
        patterns: that a figure shows; None: they are made of the data set that the result names.
    """
    from ptymesh.recipe.writers import write

    files: list[Path] = []
    if figures:
        try:
            result = Result.load(path)
            files += write_figures(result, path.parent, patterns=patterns or _patterns_of(result))
        except Exception as error:
            remedy = f"The result is complete; `ptymesh view {path}` draws them."
            _report_failure(f"No figures were drawn: {_one_sentence(error)} {remedy}", path)
    for name in writers:
        try:
            files += write(name, Result.load(path), path.parent)
        except Exception as error:
            remedy = f"The result is complete; `ptymesh view {path} --write {name}` tries again."
            _report_failure(f"{_one_sentence(error)} {remedy}", path)
    return files


def _patterns_of(result: Result) -> PatternPairs | None:
    from ptymesh.run_folder.patterns import patterns_of

    try:
        return patterns_of(result)
    except PtymeshError as error:
        print(f"ptymesh: No patterns are shown: {error}", file=sys.stderr, flush=True)
        return None


def _one_sentence(error: Exception) -> str:
    """Return what an exception says as one sentence of bounded length."""
    sentence = str(error) if isinstance(error, PtymeshError) else f"{type(error).__name__}: {error}"
    return f"{' '.join(sentence.split())[:500].rstrip('.')}."


def _report_failure(sentence: str, result: Path) -> None:
    """Say it on standard error and in the run's log."""
    print(f"ptymesh: {sentence}", file=sys.stderr, flush=True)
    try:
        with (result.parent / "log.txt").open("a", encoding="utf-8") as log:
            log.write(f"{datetime.now().astimezone().isoformat(timespec='seconds')}  {sentence}\n")
    except OSError:  # such as a full disk
        pass


def _named_figures(result: Result, light: np.ndarray, patterns: PatternPairs | None) -> Iterator[tuple[str, Make]]:
    """Yield names, and what makes the figures; the overview comes first."""
    from ptymesh.models import declared

    pixel, title = result.pixel_size_m, title_of(result)
    final, stages = result.attrs.get("final_residual"), _stage_names(result)
    yield "overview", lambda: overview_of(result, light)
    if patterns is not None:
        yield "patterns", partial(plot.patterns_figure, patterns.pairs, patterns.mask, patterns.far_field)
        if patterns.mean is not None:
            yield "mean_pattern", partial(_mean_pattern_of, result, patterns)
    if {"loss", "residual"} & result.history.keys():
        floor, convergence = result.attrs.get("noise_floor"), result.convergence
        yield "history", lambda: plot.history_figure(result.history, final, stages, None, floor, convergence)
    yield "object", lambda: plot.object_figure(result.object, pixel, light, title)
    if len(result.object) > 1:
        yield "slices", lambda: plot.slices_figure(result.object, pixel, light, result.slice_spacing_m)
        yield "sections", lambda: _sections_of(result, light)
    spectrum = _spectrum_of(result, light)
    if spectrum is not None:
        title_of_spectrum = f"power spectrum of the phase{', slices summed' if len(result.object) > 1 else ''}"
        yield "spectrum", partial(plot.spectrum_figure, spectrum, title_of_spectrum)
    centres = result.positions_px + (np.array(result.probe.shape[-2:]) - 1) / 2
    yield "coverage", lambda: plot.coverage_figure(light, centres, pixel)
    yield "probe", lambda: plot.probe_figure(result.probe, pixel)
    for number, modes in enumerate(() if result.scan_probes is None else result.scan_probes):
        yield f"probe_of_scan_{number}", partial(plot.probe_figure, modes, pixel)
    if result.attrs.get("propagation") in (None, "far_field"):
        yield "pupil", lambda: _pupil_of(result)
    yield "positions", lambda: plot.positions_figure(result.positions_px, result.nominal_px, pixel)
    moves = moves_of_result(result)
    if moves is not None and result.nominal_px is not None:
        yield "moves", partial(plot.moves_figure, result.nominal_px, result.positions_px, moves, pixel)
    unknowns = {name: one.unknown for name, one in declared().items()}
    for name, images in result.unknowns.items():
        one = unknowns.get(name)
        if one is not None and one.scope == "tiled":
            yield name, partial(plot.field_figure, images, pixel, light, f"{name}, {one.unit}" if one.unit else name)
        elif one is not None and one.scope == "view" and one.axes == ("N", "2"):
            yield name, partial(plot.view_vectors_figure, centres, images, pixel, name, one.unit)
        elif np.iscomplexobj(images) and images.ndim == 3 and (one is None or "M" not in one.axes):  # of every view
            (h, w), (n, m) = result.probe.shape[-2:], images.shape[-2:]
            larger = pixel and (pixel[0] * h / n, pixel[1] * w / m)
            about = f"{name} of view 1 of {len(images)}"
            yield name, partial(plot.object_figure, images[0], larger, None, about)


def _mean_pattern_of(result: Result, patterns: PatternPairs) -> Figure:
    """Return the figure of the mean pattern, over angles where wavelength and object pixel say them."""
    assert patterns.mean is not None
    wavelength, step = wavelength_of(result.attrs), None
    if wavelength is not None and result.pixel_size_m is not None:
        h, w = result.probe.shape[-2:]
        step = wavelength / (h * result.pixel_size_m[0]), wavelength / (w * result.pixel_size_m[1])
    is_electron = result.attrs.get("radiation") == "electron"
    return plot.mean_pattern_figure(
        *patterns.mean, patterns.averaged, step, patterns.far_field, is_electron=is_electron
    )


def _sections_of(result: Result, light: np.ndarray) -> Figure:
    """Return the figure of cuts along the beam: through the potential in V nm where there is one, else the phase."""
    values, label = result.object, "arg O (rad)"
    if result.potential_V_nm is not None:
        values, label = result.potential_V_nm, "potential (V nm)"
    elif result.potential is not None:
        values = result.potential
    sections = plot.sections_of(values, light)
    return plot.sections_figure(sections, result.pixel_size_m, result.slice_spacing_m, label)


def _spectrum_of(result: Result, light: np.ndarray) -> PowerSpectrum | None:
    """Return the power spectrum of the phase of all slices in the middle of the illuminated area; None if too small."""
    region = illuminated(light, DIM)
    longest = LONGEST_PHASE
    if result.potential is None:
        longest = max(round(LONGEST_PHASE / len(result.object) ** 0.5), LONGEST_SLICE)
    box = tuple(_middle(np.flatnonzero(region.any(axis=axis)), longest) for axis in (1, 0))
    region = region[box]
    if not region.any():
        return None
    if result.potential is not None:
        phase = plot.without_ramp(result.potential[:, box[0], box[1]].sum(axis=0), region)
    else:
        phase = np.sum([plot.unwrapped_phase(one[box], region) for one in result.object], axis=0)
    try:
        return power_spectrum(phase, region, result.pixel_size_m)
    except BadInput:
        return None


def _middle(places: np.ndarray, longest: int) -> slice:
    """Return the range of ascending places, or the middle of it that is no longer."""
    first, last = (int(places[0]), int(places[-1]) + 1) if len(places) else (0, 0)
    cut = max(last - first - longest, 0)
    return slice(first + cut // 2, last - (cut - cut // 2))


def _pupil_of(result: Result) -> Figure:
    """Return the figure of the probe in reciprocal space, with its aberrations where the wavelength is known."""
    spectrum, wavelength = pupil_of(result.probe[0]), wavelength_of(result.attrs)
    lens = None
    if wavelength is not None and result.pixel_size_m is not None:
        with suppress(BadInput):  # a pupil of few pixels
            lens = fit_lens(spectrum, result.pixel_size_m, wavelength)
    is_electron = result.attrs.get("radiation") == "electron"
    inside = pupil_mask(spectrum)
    return plot.pupil_figure(spectrum, inside, result.pixel_size_m, wavelength, lens, is_electron=is_electron)


def overview_of(result: Result, light: np.ndarray) -> Figure:
    """Return the figure of object, strongest probe modes, illumination and residual of a result.

    Args:
        result: of a run.
        light: (H, W), counts on each pixel.
    """
    return plot.overview_figure(
        result.object,
        result.probe,
        result.positions_px,
        light,
        result.history,
        pixel_size_m=result.pixel_size_m,
        final_residual=result.attrs.get("final_residual"),
        stage_names=_stage_names(result),
        title=title_of(result),
        verdict=result.verdict,
        reason=str(result.attrs.get("verdict_sentence", "")),
    )


def _stage_names(result: Result) -> list[str] | None:
    """Return the names of the engines of the stages; None where the result does not say them."""
    return str(result.attrs["engine"]).split("+") if "engine" in result.attrs else None


def title_of(result: Result) -> str:
    """Name of the data, engines and final residual, as far as the result knows them."""
    attrs = result.attrs
    words = [Path(str(attrs["data_path"])).name] if attrs.get("data_path") else []
    words += [f"{len(result.positions_px)} views"]
    words += [str(attrs["engine"])] if attrs.get("engine") else []
    words += [f"final residual {attrs['final_residual']:.4g}"] if attrs.get("final_residual") is not None else []
    return ", ".join(words)

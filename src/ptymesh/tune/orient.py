"""Orientation of a detector to its scan, found by a ready-made study on a cheap crop of the data.

Every orientation is reconstructed for a few epochs from the views in the middle of the scan and the brightest part of
the detector; held-out residuals decide. Object turns and mirror images are no different results, so these are all:

without a rotation of the scan      the eight ways to lay a square detector
with one                            transposed or not, times the angles of a full circle, then finer around the best

What no residual can tell is the twin: -G with object and probe conjugated. It is settled by what is known
of the probe (the sign of its defocus) or of the object (the sign of its phase), or else both are named.
"""

from __future__ import annotations

import copy
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from scipy import fft, ndimage

from ptymesh.compare import illuminated, illumination, twin
from ptymesh.distributed.joining import join
from ptymesh.distributed.world import Solo
from ptymesh.errors import BadInput, PtymeshError
from ptymesh.io import load_measurement
from ptymesh.io.prepare.checks import refuse_featureless, without_marks
from ptymesh.measurement import Measurement
from ptymesh.recipe.schema import DEFAULT_STAGES, Recipe, put
from ptymesh.recipe.starts import ElectronStart, EmptyBeamStart
from ptymesh.run.reconstruction import Reconstruction
from ptymesh.run.session import reconstruction
from ptymesh.tune.options import Tuning
from ptymesh.tune.orientation import KEYS, Orientation, apart_but_for_twin_deg, discrete, wrapped
from ptymesh.tune.records import Record
from ptymesh.tune.session import run_study
from ptymesh.verdict.held_out import judge_held_out, own_unknowns

C10 = Literal["recipe", "negative", "positive", "unknown"]
#: The detector crop holds every ring of the mean pattern that is at least so bright against the brightest; its sides
#: are multiples of SIDE, at least SMALLEST.
BRIGHT, SIDE, SMALLEST = 0.1, 8, 32
HELD_OUT = 0.2
#: A probe that correlates with its twin so well does not tell it.
SYMMETRIC = 0.98
#: Skewness of the object's phase from which on its sign is seen.
SKEWED = 0.15
#: Margins in standard errors of the held-out views' differences.
SURE, LIKELY = 6.0, 3.0
#: Held-out views below which their differences have no standard error to speak of.
FEWEST_HELD_OUT = 4
#: Rotations (degrees) from which on two orientations are different answers.
DISTINCT_DEG = 44.0


@dataclass(frozen=True)
class Crop:
    """Part of the data that is used, and for how long.

    Attributes:
        views: number of views, those in the middle of the scan.
        crop: side in detector pixels; None for the bright part of the detector.
        epochs: of each reconstruction.
        batch: views of a batch.
    """

    views: int = 300
    crop: int | None = None
    epochs: int = 4
    batch: int = 20


@dataclass(frozen=True)
class Oriented:
    """Orientation that was found, and how sure it is.

    Fields:
        best, twin: orientations; the twin goes with the opposite defocus.
        second: the best of those that are neither. residual, second_residual, twin_residual: held out.
        margin: (second_residual - residual) / residual. errors: the same difference in its standard errors, over the
            held-out views, nan where they are too few or do not differ. confidence: sure, likely, unsure or none.
        settled: what tells best from twin, empty where nothing does.
        c10_m: of the best's probe start, where it has one. set_c10: whether it is not the recipe's.
        c10_key: the recipe key that sets it. trials: all that was tried. views, window: what it was tried on.
    """

    best: Orientation
    twin: Orientation
    second: Orientation
    residual: float
    second_residual: float
    twin_residual: float
    margin: float
    errors: float
    confidence: str
    settled: str
    c10_m: float | None
    set_c10: bool
    c10_key: str
    trials: int
    views: int
    window: tuple[int, int]

    def lines(self, which: Orientation | None = None) -> dict[str, object]:
        """Return the recipe keys that set the best orientation, or its twin, as nested dicts."""
        chosen = which or self.best
        raw: dict[str, object] = {}
        for key, value in chosen.settings().items():
            put(raw, key, value, "orient")
        opposite = chosen == self.twin and chosen != self.best
        if self.c10_m and (self.set_c10 or opposite):
            c10 = -self.c10_m if opposite else self.c10_m
            put(raw, self.c10_key, c10 if self.c10_key.endswith("C10") else -c10, "orient")
        return raw


def orient(
    recipe: Mapping[str, object],
    *,
    crop: Crop = Crop(),
    rotation_step_deg: float | None = None,
    c10: C10 | Sequence[float] = "recipe",
    phase: Literal["bright", "dark"] | None = None,
    workers: int | None = None,
    device: str = "auto",
    out: Path | None = None,
    quiet: bool = True,
) -> Oriented:
    """Find the orientation of a recipe's data, whatever orientation the recipe itself says.

    Args:
        recipe: plain dicts with absolute paths (`raw_recipe`); its engines are not used.
        crop: how much of the data, and for how long.
        rotation_step_deg: between the rotations tried first; 0: none; None: 15 for electrons, 0 otherwise.
        c10: what is known of the probe's defocus (C10 = -defocus): that of the recipe's probe, with its sign (recipe)
            or another one (negative, positive), or without (unknown); or values (metres) to try.
        phase: whether features of the object advance the phase (bright) or retard it (dark).
        workers: processes on this machine, as in `run_study`.
        device: auto, cpu, cuda or cuda:N.
        out: folder in which the studies are kept; None: they are removed.
        quiet: show nothing.

    Raises:
        BadInput: the recipe does not fit.
    """
    raw, parsed, scan = _cheap(recipe, crop)
    key, current = defocus_key(parsed, scan)
    tried = _defocus(c10, key, current)
    world = Solo(join(device).device)
    if rotation_step_deg is None:
        rotation_step_deg = 15.0 if scan.geometry.radiation == "electron" else 0.0
    _cover(rotation_step_deg)
    search = _Search(raw, parsed, scan, key, workers, device, quiet)
    with tempfile.TemporaryDirectory(prefix="ptymesh-orient-") as temporary:
        folder = out or Path(temporary)
        if rotation_step_deg:
            orientations = search.rotations(folder, rotation_step_deg, tried)
        else:
            orientations = search.discrete(folder, tried)
    return _choose_orientation(search, orientations, world, c10, tried, phase, by_rotation=bool(rotation_step_deg))


def _cover(step_deg: float) -> None:
    if step_deg and (step_deg < 0 or step_deg > 45 or abs(360 / step_deg - round(360 / step_deg)) > 1e-9):
        raise BadInput(f"The rotation step is {step_deg:g} degrees; give one of at most 45 that divides 360, or 0.")


def _cheap(recipe: Mapping[str, object], crop: Crop) -> tuple[dict[str, object], Recipe, Measurement]:
    """Return the recipe on the middle views and the bright part of the detector, raw and parsed, and its data."""
    raw: dict[str, object] = copy.deepcopy(dict(recipe))
    for key, value in Orientation().settings().items():
        put(raw, key, value, "orient")
    put(raw, "data.views.central", crop.views, "orient")
    raw["hold_out"] = HELD_OUT
    raw["stages"] = [{**DEFAULT_STAGES[0], "epochs": crop.epochs, "batch": crop.batch}]
    parsed = Recipe.parse(raw)
    scan = load_measurement(parsed.data, parsed.positions)
    refuse_featureless(without_marks(scan))
    if scan.views == 1:
        raise BadInput(f"{scan.name} has one view, and an orientation is found by views that are held out; read more.")
    if crop.crop is not None:
        put(raw, "data.crop", crop.crop, "orient")
    elif scan.geometry.propagation == "far_field" and parsed.data.pad is None:
        side = bright_side(scan)
        if side < min(scan.window):
            put(raw, "data.crop", side * parsed.data.bin, "orient")
    parsed = Recipe.parse(raw)
    lens = parsed.probe.start
    if isinstance(lens, ElectronStart | EmptyBeamStart) and lens.aberrations_m:
        # C10 is put beside them, which may be called C1
        put(raw, "probe.start.aberrations_m", dict(lens.aberrations_m), "orient")
    return raw, parsed, load_measurement(parsed.data, parsed.positions)


def bright_side(scan: Measurement) -> int:
    """Return the side (window pixels) of the square around DC that holds the bright part of the mean pattern."""
    views = np.unique(np.linspace(0, scan.views - 1, min(64, scan.views)).astype(int))
    counts = np.maximum(scan.patterns.read(views), 0).mean(axis=0, dtype=np.float64)
    mean = np.fft.fftshift(np.where(scan.mask, counts, 0))
    y, x = (np.abs(np.arange(n) - n // 2) for n in mean.shape)
    distance = np.maximum(y[:, None], x[None, :])
    rings = np.bincount(distance.ravel(), weights=mean.ravel()) / np.bincount(distance.ravel())
    radius = int(np.flatnonzero(rings >= BRIGHT * rings.max())[-1]) + 1
    return max(SMALLEST, math.ceil(2 * radius / SIDE) * SIDE)


# --- the probe's defocus ---------------------------------------------------------------------------------------------


def defocus_key(recipe: Recipe, scan: Measurement) -> tuple[str, float | None]:
    """Return the recipe key of the probe's defocus, and its C10 (m); no key for probes that are given as arrays."""
    start: Any = recipe.probe.start
    if isinstance(start, ElectronStart | EmptyBeamStart):
        c10 = start.aberrations_m.get("C10", 0.0)
        return "probe.start.aberrations_m.C10", (c10 if isinstance(c10, float | int) else 0.0) - start.defocus_m
    if start.kind == "auto" and scan.probe is None:
        return "probe.start.defocus_m", 0.0
    if not hasattr(start, "defocus_m"):
        return "", None
    defocus = start.defocus_m
    return "probe.start.defocus_m", -(sum(defocus) / 2 if isinstance(defocus, tuple) else defocus)


def _defocus(c10: C10 | Sequence[float], key: str, current: float | None) -> list[float]:
    """Return the values of C10 to try; none for the recipe's probe as it stands."""
    if isinstance(c10, str):
        if c10 not in ("recipe", "negative", "positive", "unknown"):
            raise BadInput(f"c10 is {c10!r}; give recipe, negative, positive, unknown, or values in metres.")
        if c10 in ("recipe", "unknown"):
            return []
        if not key or not current:
            reason = "is given as an array" if not key else "has none"
            raise BadInput(f"The sign of C10 is known, but the recipe's probe {reason}; give values in metres instead.")
        return [math.copysign(current, 1 if c10 == "positive" else -1)]
    if not key:
        raise BadInput("The recipe's probe is given as an array, which has no C10 to set; use another probe.start.")
    if not c10 or not all(math.isfinite(value) for value in c10):
        raise BadInput(f"c10 is {list(c10)}; give values in metres.")
    return [float(value) for value in c10]


# --- the search ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Tried:
    """Orientation that was tried, with its probe's C10, its matrix G, held-out residual and recipe."""

    orientation: Orientation
    c10_m: float | None
    relative: np.ndarray
    residual: float
    recipe: dict[str, Any]


@dataclass(frozen=True)
class _Search:
    raw: dict[str, Any]
    parsed: Recipe
    scan: Measurement
    key: str
    workers: int | None
    device: str
    quiet: bool

    def discrete(self, folder: Path, c10: list[float]) -> list[_Tried]:
        """Try all eight flips and transpositions."""
        choices: list[dict[str, object]] = [one.settings() for one in discrete()]
        space: dict[str, object] = {key: list(dict.fromkeys(one[key] for one in choices)) for key in KEYS[:3]}
        return self._study(folder, space, c10)

    def rotations(self, folder: Path, step_deg: float, c10: list[float]) -> list[_Tried]:
        """Try rotations around the circle in steps, then around the best in thirds of a step.

        Args:
            folder: into which the two studies write.
            step_deg: step in degrees.
            c10: values in metres to try with each; none for the recipe's probe.
        """
        circle = [wrapped(k * step_deg) for k in range(round(360 / step_deg))]
        space: dict[str, object] = {KEYS[2]: [False, True], KEYS[3]: sorted(circle)}
        trials = self._study(folder / "coarse", space, c10)
        best = min(trials, key=lambda one: one.residual)
        finer = [wrapped(best.orientation.rotation_deg + k * step_deg / 3) for k in (-2, -1, 1, 2)]
        space = {KEYS[2]: [best.orientation.transpose], KEYS[3]: finer}
        return trials + self._study(folder / "fine", space, [] if best.c10_m is None else [best.c10_m])

    def _study(self, folder: Path, space: dict[str, Any], c10: list[float]) -> list[_Tried]:
        raw = copy.deepcopy(self.raw)
        if c10:
            if self.key.endswith("C10"):
                put(raw, "probe.start.defocus_m", 0.0, "orient")
            else:
                start = raw.setdefault("probe", {}).get("start")
                if start is None or start == "auto" or start == {"kind": "auto"}:
                    raw["probe"]["start"] = {"kind": "data"}
                elif isinstance(start, str):
                    raw["probe"]["start"] = {"kind": start}
            sign = 1 if self.key.endswith("C10") else -1
            space = {**space, self.key: [sign * value for value in c10]}
        points = math.prod(len(values) for values in space.values())
        tuning = Tuning.parse(
            {
                "recipe": raw,
                "space": space,
                "objective": {"kind": "held_out", "every": 10**6},
                "trials": points,
                "sampler": "grid",
                "pruner": "nop",
                "output": {"dir": str(folder)},
            }
        )
        outcome = run_study(
            tuning, workers=self.workers, device=self.device, force=True, quiet=self.quiet, reconstruct=False
        )
        assert outcome is not None
        return [tried for one in outcome.trials if (tried := self._tried(one)) is not None]

    def _tried(self, one: Record) -> _Tried | None:
        if one.state != "done" or one.value is None or not math.isfinite(one.value):
            return None
        orientation = Orientation.of({**Orientation().settings(), **one.settings})
        nominal = one.settings.get(self.key)
        c10 = None if nominal is None else float(nominal) * (1 if self.key.endswith("C10") else -1)
        relative = orientation.relative(self.parsed.positions.model_dump())
        return _Tried(orientation, c10, relative, one.value, one.recipe)


# --- the decision ----------------------------------------------------------------------------------------------------


def _choose_orientation(
    search: _Search,
    orientations: list[_Tried],
    world: Solo,
    c10: C10 | Sequence[float],
    values: list[float],
    phase: str | None,
    *,
    by_rotation: bool,
) -> Oriented:
    """Return the orientation with the lowest residual, how sure it is, and which of the two twins it is.

    Args:
        search: the scan and the recipe.
        orientations: orientations that were tried.
        world: of the reruns that judge the best one and the second.
        c10: what is known of C10: "recipe", "negative", "positive" or "unknown"; or the values that were asked for.
        values: C10 (m) that were tried; none for the recipe's probe as it stands.
        phase: "bright" or "dark" features of the object, if that is known.
        by_rotation: True to express the twin by a rotation of the scan instead of flips.
    """
    scan = search.scan
    if len(orientations) < 2:
        raise PtymeshError("Fewer than two orientations came to a residual; check the recipe with ptymesh run.")
    best = min(orientations, key=lambda one: one.residual)
    distinct = [one for one in orientations if apart_but_for_twin_deg(one.relative, best.relative) > DISTINCT_DEG]
    second = min(distinct, key=lambda one: one.residual)
    twins = [one for one in orientations if np.linalg.norm(one.relative + best.relative) < 0.3]
    first = _rerun(best, world)
    errors = _standard_errors(first, _rerun(second, world))
    used = best.c10_m if best.c10_m is not None else defocus_key(search.parsed, scan)[1]
    orientation = best.orientation
    far = scan.geometry.propagation == "far_field"
    settled = _settled_by_probe(first, c10, values) if far else "the near field, which has no twin"
    if not settled and phase is not None:
        sign = phase_sign(first.recon)
        if sign:
            settled = "the sign of the phase"
        if sign == (-1 if phase == "bright" else 1):
            orientation = orientation.twin(by_rotation=by_rotation)
            used = None if used is None else -used
    return Oriented(
        best=orientation,
        twin=orientation.twin(by_rotation=by_rotation),
        second=second.orientation,
        residual=best.residual,
        second_residual=second.residual,
        twin_residual=min((one.residual for one in twins), default=math.nan),
        margin=(second.residual - best.residual) / best.residual if best.residual else math.nan,
        errors=errors,
        confidence=_confidence(errors),
        settled=settled,
        c10_m=used,
        set_c10=best.c10_m is not None or orientation != best.orientation,
        c10_key=search.key,
        trials=len(orientations),
        views=scan.views,
        window=scan.window,
    )


def _confidence(errors: float) -> str:
    """Return the word for so many standard errors between the best and the next."""
    if math.isnan(errors):
        return "none"
    return "sure" if errors > SURE else "likely" if errors > LIKELY else "unsure"


@dataclass(frozen=True)
class _Rerun:
    """Reconstruction, the probe (h, w) that it started from, and the views that it held out."""

    recon: Reconstruction
    start: np.ndarray
    held_out: np.ndarray


def _rerun(one: _Tried, world: Solo) -> _Rerun:
    """Repeat the reconstruction of an orientation, for what a study does not keep."""
    recipe = Recipe.parse(one.recipe)
    recon = reconstruction(recipe, world)
    start, loop = recon.probe[0].copy(), recon.loop(hold_out=recipe.hold_out)
    loop.run()
    return _Rerun(recon, start, loop.held_out)


def _standard_errors(a: _Rerun, b: _Rerun) -> float:
    """Return the mean difference of the held-out views' residuals, b - a, in standard errors; nan where it has none."""
    if len(a.held_out) < FEWEST_HELD_OUT:
        return math.nan
    first, second = (_residuals(one, a.held_out) for one in (a, b))
    difference = second - first
    spread = float(difference.std(ddof=1)) / math.sqrt(len(difference))
    return float(difference.mean()) / spread if spread else math.nan


def _residuals(one: _Rerun, views: np.ndarray) -> np.ndarray:
    """Return the residual (n,) of each of these held-out views."""
    problem, estimate = one.recon.problem, one.recon.state.estimate
    moved_unknowns = own_unknowns(one.recon.stages, problem.model.unknowns, len(estimate.opr))
    judged = judge_held_out(problem, estimate, views, moved_unknowns)
    return judged.misfit / judged.counts


def _settled_by_probe(rerun: _Rerun, c10: C10 | Sequence[float], values: list[float]) -> str:
    """Return the clause on the probe by which a scan is told from its twin; empty where nothing is known of it."""
    if c10 == "unknown" or (values and min(values) < 0 < max(values)):
        return ""
    if likeness(rerun.start, twin(rerun.start)) > SYMMETRIC:
        return ""
    if values:
        return f"C10, known to be {'negative' if values[0] < 0 else 'positive'}"
    return "the recipe's probe, whose phase is taken to be known"


def likeness(a: np.ndarray, b: np.ndarray) -> float:
    """Return the largest correlation of two probes (h, w) under a shift, 0 to 1."""
    cross = fft.ifft2(fft.fft2(a) * fft.fft2(b).conj())
    return float(np.abs(cross).max() / (np.linalg.norm(a) * np.linalg.norm(b)))


def phase_sign(recon: Reconstruction) -> int:
    """Return 1 if features have a positive phase (by its skewness), -1 a negative one, 0 if that cannot be told."""
    estimate = recon.state.estimate
    obj = np.prod(recon.object, axis=0).astype(np.complex128)
    light = illumination((obj.shape[0], obj.shape[1]), recon.probe, estimate.positions.cpu().numpy())
    illuminated_mask = illuminated(light, 0.3)
    smooth = ndimage.gaussian_filter(np.where(illuminated_mask, obj, 0), 12)
    phase = ndimage.gaussian_filter(np.where(illuminated_mask, np.angle(obj * smooth.conj()), 0), 1.0)[illuminated_mask]
    spread = phase.std()
    skewness = float(((phase - phase.mean()) ** 3).mean() / spread**3) if spread else 0.0
    return 0 if abs(skewness) < SKEWED else int(math.copysign(1, skewness))

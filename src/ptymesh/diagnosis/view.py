"""A result, and some of its patterns beside their model, as the causes look at them.

N, B    all views, views looked at
h, w    window pixels
I, y    modelled intensities, counts
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from ptymesh.compare import illumination_of_result
from ptymesh.errors import PtymeshError
from ptymesh.geometry import Geometry
from ptymesh.io.prepare.survey import speckle_diameter_px
from ptymesh.io.results import Result
from ptymesh.measurement import Measurement, evenly_spread
from ptymesh.physics.detector.counting import misfit_of
from ptymesh.planning.batches import hold_out
from ptymesh.recipe.schema import Recipe
from ptymesh.run_folder.patterns import CHUNK, model_of
from ptymesh.run_folder.patterns import modelled as intensities_of
from ptymesh.verdict.scan_pass import ScanPass, scan_pass

#: Views, and numbers in an array of their patterns, that are looked at, at most.
MOST_VIEWS, MOST_NUMBERS, LEAST_VIEWS = 256, 1 << 24, 16
#: Incident intensity of a view, relative to the mean, below which it is dark.
LEAST_INTENSITY = 1e-3
#: Half of the distance, in pixels, over which intensities are differentiated by positions.
STEP_PX = 0.25
#: Wavelength in metres below which radiation is taken for electrons; photons of 100 keV have more.
ELECTRONS_M = 1e-11

#: Residual that is good where the noise floor is not known.
GOOD_RESIDUAL = 1e-3
#: Neighbour correlation of a misfit that is all structure: speckles are about two pixels wide.
STRUCTURE = 0.6
#: Share of the most light below which a pixel of object or probe is hardly a parameter.
DIM = 0.02


@dataclass(frozen=True)
class ResultView:
    """A result and the scan that it was made from, with what the causes need of them, computed once.

    Attributes:
        result: of a run.
        scan: its data, or None where only the result is at hand.
        path: of the result's file, for commands that are printed; None where there is none.
        memo: values that functions of causes keep for each other.
    """

    result: Result
    scan: Measurement | None = None
    path: Path | None = None
    memo: dict[str, object] = field(default_factory=dict, repr=False)

    @property
    def is_of_electrons(self) -> bool:
        """True if the wavelength is that of electrons."""
        wavelength = None if self.scan is None else self.scan.geometry.wavelength_m
        return wavelength is not None and wavelength < ELECTRONS_M

    # --- how good it is ---

    @cached_property
    def recipe(self) -> Recipe | None:
        """The recipe that the result holds; None of a run from Python, or of one that cannot be read."""
        with suppress(PtymeshError):
            return Recipe.from_yaml(self.result.recipe) if self.result.recipe else None
        return None

    @cached_property
    def times(self) -> float | None:
        """Residual as a multiple of what counting leaves of the true intensities, None where that is not known."""
        residual = self.result.attrs.get("final_residual")
        return float(residual / self.noise_level) if residual and self.noise_level else None

    @cached_property
    def noise_level(self) -> float | None:
        """Residual that counting leaves of the true intensities; older results call it their noise floor."""
        attrs = self.result.attrs
        return attrs.get("noise_level", attrs.get("noise_floor"))

    @cached_property
    def misfit_times(self) -> float:
        """Multiple of what noise explains that the misfit is, also where patterns are no counts; infinite if unknown.

        Without a floor, noise is what has no correlation from one detector pixel to the next.
        """
        if self.times is not None:
            return self.times
        residual = self.result.attrs.get("final_residual")
        if residual is not None and residual < GOOD_RESIDUAL:
            return 1.0
        if self.scan is None:
            return math.inf
        products = []
        for axis in (1, 2):
            both_good = self.good & np.roll(self.good, 1, axis)
            products.append((self.misfit * np.roll(self.misfit, 1, axis))[both_good].mean())
        share = float(np.mean(products) / max((self.misfit[self.good] ** 2).mean(), 1e-30)) / STRUCTURE
        return 1 / max(1 - share, 0.01)

    @cached_property
    def held_out_by_noise(self) -> float:
        """Held-out residual over that of the fitted views, if the model is right and all parameters are determined.

        F (1 + q) over F (1 - q), q = p / 4 sum f, for p fitted real numbers; 1 where the noise floor is not known.
        """
        floor = self.noise_level
        if not floor:
            return 1.0
        slices, modes = len(self.result.object), len(self.result.probe)
        pixels = slices * np.count_nonzero(self.light > DIM * self.light.max())
        pixels += modes * np.count_nonzero(self.power > DIM * self.power.max())
        weights = self.result.weights
        per_view = 1.0 if weights is None else float((np.abs(weights[:, 0]) ** 2).mean())
        misfit = floor * self.power.sum() * per_view * len(self.result.positions_px)
        q = min(2 * pixels / max(4 * misfit, 1e-30), 0.6)
        return (1 + q) / (1 - q)

    @cached_property
    def signs(self) -> tuple[str, ...]:
        """Names of causes that the run's verdict has signs of, the surest first (verdict/signs.py)."""
        return tuple(str(name) for name in self.result.attrs.get("verdict_causes", None) or ())

    # --- the result alone ---

    @cached_property
    def light(self) -> np.ndarray:
        """Counts that fell on each object pixel, (H, W)."""
        return illumination_of_result(self.result)

    @cached_property
    def power(self) -> np.ndarray:
        """sum_m |P_m|^2, (h, w)."""
        return np.asarray((np.abs(self.result.probe.astype(np.complex128)) ** 2).sum(axis=0))

    @cached_property
    def object(self) -> np.ndarray:
        """Product of the slices, (H, W) complex128."""
        return np.asarray(np.prod(self.result.object.astype(np.complex128), axis=0))

    @cached_property
    def nearest_px(self) -> np.ndarray:
        """Distance of each view's nearest neighbours, the four nearest, (N, 4)."""
        from scipy.spatial import cKDTree

        positions = self.result.positions_px
        near = min(4, len(positions) - 1)
        if near < 1:
            return np.full((len(positions), 1), np.inf)
        return np.asarray(cKDTree(positions).query(positions, k=near + 1)[0][:, 1:])

    @cached_property
    def result_positions(self) -> np.ndarray:
        """Positions (N, 2) of the windows as the scan has them, before any refinement, in object pixels."""
        return self.result.positions_px if self.result.nominal_px is None else self.result.nominal_px

    # --- with the data ---

    @cached_property
    def scan_pass(self) -> ScanPass:
        """Results of one pass over all patterns."""
        assert self.scan is not None
        return scan_pass(self.scan)

    @cached_property
    def brightness(self) -> np.ndarray:
        """Counts of each view over the incident intensity that is known of it, (N,)."""
        assert self.scan is not None
        intensity = self.scan.intensity
        return (
            self.scan_pass.totals
            if intensity is None
            else self.scan_pass.totals / np.maximum(intensity, LEAST_INTENSITY)
        )

    @cached_property
    def views(self) -> np.ndarray:
        """Indices of the views that are looked at, evenly along the scan, (B,).

        Views that were held out are left out where what each view has for itself was refined, as theirs was not.
        """
        scan, recipe = self.scan, self.recipe
        assert scan is not None
        views = np.arange(scan.views)
        if recipe is not None and self.result.attrs.get("held_out_fitted") is not None:
            unturned = scan.positions if scan.stored_positions is None else scan.stored_positions
            views = np.setdiff1d(views, hold_out(unturned, recipe.hold_out, recipe.seed))
        h, w = scan.window
        return views[evenly_spread(len(views), min(MOST_VIEWS, max(LEAST_VIEWS, MOST_NUMBERS // (h * w))))]

    @cached_property
    def good(self) -> np.ndarray:
        """Pixels that hold data, (B, h, w) bool."""
        return self._counts[1]

    @cached_property
    def y(self) -> np.ndarray:
        """Counts, 0 where there are no data, (B, h, w)."""
        return self._counts[0]

    @cached_property
    def _counts(self) -> tuple[np.ndarray, np.ndarray]:
        assert self.scan is not None
        measured = self.scan.patterns.read(self.views).astype(np.float64)
        good = self.scan.mask & (measured >= 0)
        return np.where(good, measured, 0), good

    @cached_property
    def modelled(self) -> np.ndarray:
        """Modelled intensities, 0 where there are no data, (B, h, w)."""
        return self.model(self.result)

    def model(self, result: Result, geometry: Geometry | None = None) -> np.ndarray:
        """Return intensities (B, h, w) of a result, in another geometry if one is given; 0 where there are no data."""
        assert self.scan is not None
        how = model_of(result, geometry or self.scan.geometry, self.scan)
        chunks = [self.views[start : start + CHUNK] for start in range(0, len(self.views), CHUNK)]
        modelled = np.concatenate([intensities_of(how, result, chunk, self.scan) for chunk in chunks])
        return np.where(self.good, np.maximum(modelled, 0), 0)

    @cached_property
    def misfit(self) -> np.ndarray:
        """Misfit sqrt y - sqrt I of amplitudes, (B, h, w)."""
        return np.asarray(np.sqrt(self.y) - np.sqrt(self.modelled))

    @cached_property
    def holds_counts(self) -> bool:
        """True if the patterns are whole numbers, which counts are."""
        return bool((self.y == np.round(self.y)).all())

    @cached_property
    def moves(self) -> tuple[np.ndarray, np.ndarray]:
        """Move that each view asks of its position, and its standard error from counting, (B, 2) y x, in pixels.

        One Gauss-Newton step of sum (sqrt I - sqrt y)^2 along either axis, the object standing still.
        """
        slopes = [self._along(axis) for axis in range(2)]
        weight = np.array([[(a * b).sum(axis=(1, 2)) for b in slopes] for a in slopes]).transpose(2, 0, 1)
        force = np.array([(slope * self.misfit).sum(axis=(1, 2)) for slope in slopes]).T
        weight = weight + 1e-9 * np.trace(weight, axis1=1, axis2=2)[:, None, None] * np.eye(2) + 1e-30 * np.eye(2)
        inverse = np.linalg.inv(weight)
        moves = np.einsum("jab,jb->ja", inverse, force)
        return moves, 0.5 * np.sqrt(np.einsum("jaa->ja", inverse))

    @cached_property
    def share_of_moves(self) -> float:
        """Share of what counting does not explain that the views' moves would take away, the most extreme ones cut."""
        moves, errors = self.moves
        gains = (moves**2 / (4 * errors**2)).sum(axis=1)
        expected, _ = misfit_of(torch.from_numpy(self.modelled))
        excess = np.where(self.good, self.misfit**2 - expected.numpy(), 0).sum()
        by_noise = 0.5
        return float((np.minimum(gains, np.quantile(gains, 0.95)) - by_noise).sum() / max(excess, 1e-30))

    def _along(self, axis: int) -> np.ndarray:
        """Return the derivative of sqrt I by the position, (B, h, w)."""
        slopes = []
        for sign in (1, -1):
            positions = self.result.positions_px.copy()
            positions[:, axis] += sign * STEP_PX
            most = np.array(self.result.object.shape[-2:]) - self.result.probe.shape[-2:]
            inside = np.clip(positions, 0, most - 1e-9)
            slopes.append(np.sqrt(self.model(replace(self.result, positions_px=inside))))
        return np.asarray((slopes[0] - slopes[1]) / (2 * STEP_PX))

    @cached_property
    def speckle_px(self) -> float:
        """Diameter of the beam that the speckles of far-field patterns tell, in object pixels; 0 where they do not."""
        if self.scan is None or self.scan.geometry.propagation != "far_field":
            return 0.0
        return speckle_diameter_px(self.scan)

"""Choice of the propagation: far field, near field of a parallel beam, or near field behind a focus.

Patterns alone show the magnification (io/prepare/near_field.py). First epochs of reconstructions show whether a near
field explains held-out views better than a far field, and which distance does.

Mag     magnification, (z1 + z2) / z1
z1, z2  focus to sample, sample to detector;  z = z2 / Mag, the distance of the parallel beam that diffracts as much
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ptymesh.auto.candidates import Candidate, OverBudget, is_better
from ptymesh.io.prepare.near_field import DETECTOR_LIES, PARALLEL, SCAN_LIES, NearFieldSigns, near_field_signs
from ptymesh.measurement import Measurement
from ptymesh.recipe.schema import Recipe

#: A near field is tried if the sample region seen at once is this many times as wide as far-field patterns can sample,
TRIED_WIDTH = 1.25
#: or if the light fills this share of the detector,
TRIED_SHARE = 0.55
#: or if images are magnified less than this.
TRIED_MAGNIFICATION = 30.0
#: Below this width a far field is possible, and also compared with the near field in the best of all defoci.
FAR_FIELD_WIDTH = 2.0
#: Factors by which z goes up and down, one after the other, as long as that helps.
FACTORS = (2.5, 1.6, 1.26, 1.12)
#: Share of the usual first epochs that each z gets.
SHARE = 0.5
#: Largest factor between z and the first one.
LIMIT = 1e4
#: Epochs of the estimate from which distances are compared at last: in first epochs longer ones look better than they
#: are.
SETTLE_EPOCHS = 48
#: Epochs with each of three z in a round; the minimum of the parabola through their residuals is the next z.
ROUND_EPOCHS = 12
#: Largest number of rounds.
ROUNDS = 4
#: Factor between the three z of the first round.
FIRST_STEP = 1.12
#: A z within this factor of the file's is taken to be the file's.
UNCERTAIN = 1.03
#: A z within this factor of the file's has to explain more than that by SURE standard errors.
CLOSE = 1.3
#: Standard errors by which one geometry has to explain more than another one.
SURE = 3.0

#: Runs the first epochs of recipes: (recipes, whether the probe stays as it is, factor of the usual epochs). Returns a
#: candidate for each, None if it cannot start, as far as the budget goes. Raises OverBudget if it allows none.
Begin = Callable[[Sequence[Recipe], bool, float], list[Candidate | None]]
#: Continues a candidate for epochs of Adam with another recipe of the same object pixel. Raises OverBudget.
Advance = Callable[[Recipe, Candidate, int], Candidate | None]
#: Notes a sentence that says why a key of the recipe is as it is: (key, sentence).
Note = Callable[[str, str], None]


@dataclass(frozen=True)
class NearField:
    """The geometry of a near field.

    Attributes:
        magnification: Mag; 1 for a parallel beam.
        effective_m: z, in metres.
    """

    magnification: float
    effective_m: float

    def recipe(self, recipe: Recipe, told_m: float | None) -> Recipe:
        """Return the recipe with this geometry; `told_m`: the distance in metres that the file says."""
        data: dict[str, object] = {"propagation": "angular_spectrum"}
        distance = float(f"{self.magnification * self.effective_m:.6g}")
        if told_m is None or abs(distance / told_m - 1) > 1e-3:
            data["distance_m"] = distance
        if self.magnification > 1:
            data["focus_distance_m"] = float(f"{self.effective_m / (1 - 1 / self.magnification):.6g}")
        return recipe.model_copy(update={"data": recipe.data.model_copy(update=data)})

    def times(self, factor: float) -> NearField:
        """Return the same magnification at so many times the distance."""
        return replace(self, effective_m=factor * self.effective_m)

    @property
    def words(self) -> str:
        """A description for a sentence."""
        if self.magnification == 1:
            return "a near field of a parallel beam"
        return f"a near field behind a focus, magnified {self.magnification:.4g} times"


def is_to_be_tried(signs: NearFieldSigns) -> bool:
    """Return True if a near field is worth a reconstruction's first epochs."""
    looks = signs.width > TRIED_WIDTH or signs.filled > TRIED_SHARE or signs.magnification < TRIED_MAGNIFICATION
    return looks and signs.magnification > 1 - PARALLEL


def near_fields(signs: NearFieldSigns, distance_m: float) -> dict[str, NearField]:
    """Return the geometries that a file's distance (m) may mean at the magnification of the patterns, by meaning."""
    mag = signs.magnification
    if mag < 1 + PARALLEL:
        return {"from the sample to the detector": NearField(1.0, distance_m)}
    fields = {"from the sample to the detector": NearField(mag, distance_m / mag)}
    if 1 / mag > 0.1:
        fields["from the focus to the detector"] = NearField(mag, distance_m * (1 - 1 / mag) / mag)
    return fields


def find_near_field(
    recipe: Recipe,
    scan: Measurement,
    begin: Begin,
    advance: Advance,
    note: Note,
    focused: Callable[[], Candidate | None],
) -> Recipe | None:
    """Return the recipe with the near field that explains a scan better than the far field; None if none does.

    Args:
        recipe: leaves the propagation open.
        scan: the data, read for a far field.
        begin: runs the first epochs of recipes.
        advance: continues a candidate with another recipe.
        note: is called with a key of the recipe and a sentence that says why.
        focused: returns the first epochs of the far field in the best of all defoci.
    """
    told_distance_m = scan.geometry.distance_m
    if told_distance_m is None or recipe.data.propagation is not None or recipe.data.focus_distance_m is not None:
        return None
    signs = near_field_signs(scan)
    if signs is None or not is_to_be_tried(signs):
        return None
    meanings = near_fields(signs, told_distance_m)
    turned = _set_orientation(recipe, signs)
    search = DistanceSearch(turned, told_distance_m, begin, advance)
    try:
        far, *candidates = begin(
            [recipe, *(near.recipe(turned, told_distance_m) for near in meanings.values())], False, 1.0
        )
    except OverBudget:
        return None
    began = {means: candidate for means, candidate in zip(meanings, candidates, strict=False) if candidate is not None}
    if not began:
        return None
    means = min(began, key=lambda one: began[one].value)
    near, candidate = search.approach(meanings[means], began[means])
    possible = signs.width < FAR_FIELD_WIDTH and signs.magnification > TRIED_MAGNIFICATION
    if far is not None and possible and is_better(candidate, far, errors=SURE):
        far = min((far, focused()), key=lambda one: math.inf if one is None else one.value)
    helps = far is None or is_better(candidate, far, errors=SURE)
    of_far = far.formatted_residual if far else "nothing"
    outcome = f"the first epochs of {near.words} come to {candidate.formatted_residual}, a far field's to {of_far}"
    if not helps:
        note("data.propagation", f"As told: {outcome}.")
        return None
    note("data.propagation", f"Patterns are images that move with the sample: {outcome}.")
    near = search.refine_distance(near, candidate, list(meanings.values()))
    _note_distance(note, near, meanings, search.words)
    if turned != recipe:
        note("positions", "Turned so that images move against the sample.")
    return near.recipe(turned, told_distance_m)


def _set_orientation(recipe: Recipe, signs: NearFieldSigns) -> Recipe:
    """Return the recipe with the orientation that moving images ask for, unless it says one itself."""
    if SCAN_LIES & recipe.positions.model_fields_set or DETECTOR_LIES & recipe.data.model_fields_set:
        return recipe
    turned = recipe.positions.model_copy(update=signs.orientation())
    return recipe.model_copy(update={"positions": turned})


def find_distance(recipe: Recipe, scan: Measurement, begin: Begin, advance: Advance, note: Note) -> Recipe:
    """Return the recipe with the distance that suits a near field, whose magnification stays as it is.

    Args:
        recipe: says that the propagation is a near field.
        scan: the data as that recipe describes them.
        begin: runs the first epochs of recipes.
        advance: continues a candidate with another recipe.
        note: is called with a key of the recipe and a sentence that says why.
    """
    geometry = scan.geometry
    assert geometry.distance_m is not None
    near = NearField(geometry.magnification, geometry.effective_distance_m)
    search = DistanceSearch(recipe, geometry.distance_m, begin, advance)
    try:
        (first,) = begin([recipe], False, 1.0)
    except OverBudget:
        return recipe
    if first is None:
        return recipe
    best = search.refine_distance(*search.approach(near, first), [near])
    _note_distance(note, best, {"from the sample to the detector": near}, search.words)
    return recipe if best == near else best.recipe(recipe, geometry.distance_m)


def _note_distance(note: Note, near: NearField, meanings: dict[str, NearField], words: str) -> None:
    """Note how the distance follows from the file's.

    Args:
        note: is called with a key of the recipe and a sentence.
        near: the geometry that was found.
        meanings: geometries that the file's distance may mean, by meaning.
        words: how well the distance explains held-out views.
    """
    means = [means for means, other in meanings.items() if other == near]
    as_told = meanings["from the sample to the detector"]
    if near == as_told:
        how = "As the file says"
    elif means:
        how = f"What the file says is the way {means[0]}"
    else:
        how = f"Diffraction asks for {near.effective_m / as_told.effective_m:.3g} times what the file says"
    note("data.distance_m", f"{how}: {words}.")
    if near.magnification > 1:
        note(
            "data.focus_distance_m",
            f"Images move {near.magnification:.4g} times as far as the sample, as behind a focus so far before it.",
        )


class DistanceSearch:
    """The search for the distance z of a near field of known magnification.

    Args:
        recipe: all but the geometry.
        told_m: distance in metres that the file says.
        begin: runs the first epochs of recipes.
        advance: continues a candidate with another recipe.
    """

    def __init__(self, recipe: Recipe, told_m: float, begin: Begin, advance: Advance) -> None:
        self.recipe, self.told_m, self._begin, self._advance = recipe, told_m, begin, advance
        #: How well the distance explains held-out views, for a sentence.
        self.words = ""

    def run_first_epochs(self, nears: Sequence[NearField], times: float) -> list[Candidate | None]:
        """Return where `times` the usual first epochs lead with each geometry; None if not run. Raises OverBudget."""
        candidates = self._begin([self._recipe(near) for near in nears], False, times)
        return [*candidates, *([None] * (len(nears) - len(candidates)))]

    def approach(self, first: NearField, candidate: Candidate) -> tuple[NearField, Candidate]:
        """Return the near field whose first epochs explain most, and the candidate after them.

        Args:
            first: the near field from which distances are tried, up and down.
            candidate: the candidate after its first epochs, returned if no other distance explains more.
        """
        tried: dict[float, float] = {}

        def value(factor: float) -> float:
            if factor not in tried:
                (candidate,) = self.run_first_epochs([first.times(factor)], SHARE)
                tried[factor] = math.inf if candidate is None else candidate.value
            return tried[factor]

        best = 1.0
        try:
            for step in FACTORS:
                for direction in (step, 1 / step):
                    start = best
                    while 1 / LIMIT < best < LIMIT and value(best * direction) < value(best):
                        best *= direction
                    if best != start:
                        break
        except OverBudget:
            pass
        best = min(tried, key=lambda one: tried[one], default=1.0)
        self.words = f"{candidate.formatted_residual}, and others come no further"
        if best == 1.0:
            return first, candidate
        try:
            (best_candidate,) = self.run_first_epochs([first.times(best)], 1.0)
        except OverBudget:
            best_candidate = None
        if best_candidate is None or best_candidate.value >= candidate.value:
            return first, candidate
        self.words = f"{best_candidate.formatted_residual}, at first {candidate.formatted_residual}"
        return first.times(best), best_candidate

    def refine_distance(self, best: NearField, candidate: Candidate, told_distance_m: Sequence[NearField]) -> NearField:
        """Return the near field that explains most when one estimate is continued with several distances.

        An estimate has adapted to the z that made it, and as little to a shorter one as to a longer one.

        Args:
            best: the near field that looked best in the first epochs.
            candidate: the candidate after these.
            told_distance_m: geometries that the file's distance may mean.
        """
        step = FIRST_STEP
        try:
            settled = self._advance(self._recipe(best), candidate, SETTLE_EPOCHS)
            for _ in range(ROUNDS):
                if settled is None:
                    return best
                nears = [best.times(factor) for factor in (1 / step, 1.0, step)]
                ends = [self._advance(self._recipe(near), settled, ROUND_EPOCHS) for near in nears]
                values = [math.inf if end is None else end.value for end in ends]
                self.words = f"{min(values):.4g}, {step:.3g} times that and less {values[2]:.4g} and {values[0]:.4g}"
                if not all(map(math.isfinite, values)):
                    return best
                vertex = _vertex(values)
                best, settled = best.times(step**vertex), ends[int(np.argmin(values))]
                step = step**0.5 if abs(vertex) < 1 else step
            return self._prefer_file_distance(best, settled, told_distance_m)
        except OverBudget:
            if step == FIRST_STEP:  # first epochs alone do not decide between close distances
                near, factor = self._nearest(best, told_distance_m)
                return near if factor < CLOSE else best
            return best

    def _prefer_file_distance(
        self, best: NearField, settled: Candidate | None, told_distance_m: Sequence[NearField]
    ) -> NearField:
        """Return one of the file's geometries if it is as good, else the best one. Raises OverBudget."""
        near, factor = self._nearest(best, told_distance_m)
        if factor < UNCERTAIN:
            return near
        if factor > CLOSE or settled is None:
            return best
        candidates = [self._advance(self._recipe(one), settled, ROUND_EPOCHS) for one in (best, near)]
        if candidates[0] is None or candidates[1] is None or is_better(candidates[0], candidates[1], errors=SURE):
            return best
        times = f"{best.effective_m / near.effective_m:.3g} times that"
        self.words = f"{candidates[1].formatted_residual}, and {times} {candidates[0].formatted_residual}"
        return near

    @staticmethod
    def _nearest(best: NearField, told_distance_m: Sequence[NearField]) -> tuple[NearField, float]:
        """Return the nearest of the file's geometries, and the factor (at least 1) to its distance."""
        factors = [math.exp(abs(math.log(best.effective_m / one.effective_m))) for one in told_distance_m]
        place = int(np.argmin(factors))
        return told_distance_m[place], factors[place]

    def _recipe(self, near: NearField) -> Recipe:
        return near.recipe(self.recipe, self.told_m)


def _vertex(values: Sequence[float]) -> float:
    """Return where the parabola through values at -1, 0 and 1 is least, between -2 and 2.

    If it opens downwards, this is -2 or 2, on the side of the lower value.
    """
    low, middle, high = values
    bend, slope = low - 2 * middle + high, (high - low) / 2
    if bend <= 0:
        return -math.copysign(2.0, slope)
    return float(np.clip(-slope / bend, -2, 2))

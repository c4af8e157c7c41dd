"""Words for what a model and a chunk of views ask of an operation, and the tables in which backends look for a kernel.

A table has a function for each operation and capability, in the order in which they are preferred. A capability is a
list of sets of words; it covers a request if one of these sets has all words of the request. What a capability does
not name, it does not know: another kind of positions, another fidelity, operators, pieces of the detector or a model of
one's own go to the reference (physics/backend.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from ptymesh.physics.backend import Chunk, Operation
from ptymesh.physics.model import Model

Capability = tuple[frozenset[str], ...]
Table = Mapping[tuple[Operation, Capability], Callable[..., object]]

# --- words ---

ONE, SEVERAL = frozenset({"one slice"}), frozenset({"several slices"})
FAR, NEAR = frozenset({"far field"}), frozenset({"near field"})
FOURIER, BILINEAR, WHOLE = (frozenset({f"{name} positions"}) for name in ("fourier", "bilinear", "none"))
#: Probes of the views: all the same; the same, but each shifted; with OPR modes of each view's own weights.
SHARED, SHIFTED, VARIED = frozenset({"shared probe"}), frozenset({"shifted probes"}), frozenset({"varied probes"})
#: Windows whose Fourier transform the kernels know, and others.
KNOWN, UNKNOWN = frozenset({"known transform"}), frozenset({"unknown transform"})
FIDELITY_WORDS = frozenset(f"{name} fidelity" for name in ("amplitude", "poisson", "intensity"))
NONE = frozenset[str]()
#: Operators at the probe, behind the last slice, and there such as do not keep products of waves.
AT_PROBE, AT_EXIT = frozenset({"operators at the probe"}), frozenset({"operators at the exit"})
#: Operators on the way from slice to slice, which no kernel knows.
BETWEEN = frozenset({"operators between slices"})
CHANGING = frozenset({"operators that change products"})
OPERATORS = AT_PROBE | AT_EXIT | CHANGING
#: Copies of each wave, of which each has slices of its own.
OBJECT_MODES = frozenset({"object modes"})
#: Pieces between intensities and counts, and such as say from which counts on a detector counts no further.
PIECES, SATURATED = frozenset({"pieces of the detector"}), frozenset({"saturated pixels"})
#: Operations that compare waves with counts: to the others every fidelity is the same.
COMPARING: frozenset[Operation] = frozenset(
    {"at_detector", "apply_at_detector", "detector", "sweep", "steps", "recompute_waves"}
)

_FIELDS, _POSITIONS, _PROBES, _TRANSFORMS = (
    FAR | NEAR,
    FOURIER | BILINEAR | WHOLE,
    SHARED | SHIFTED | VARIED,
    KNOWN | UNKNOWN,
)
_ANY = ONE | SEVERAL | _FIELDS | _POSITIONS | _PROBES | _TRANSFORMS | FIDELITY_WORDS

# --- capabilities ---

#: Waves on the detector, wherever they come from; waves that go to a far detector.
WAVES: Capability = (_ANY | OPERATORS | OBJECT_MODES,)
FAR_FIELD: Capability = (_ANY - NEAR | OPERATORS | OBJECT_MODES,)
#: The same with a transform that the kernels know, also with pieces of the detector.
KNOWN_FAR_FIELD: Capability = (_ANY - NEAR - UNKNOWN | OPERATORS | OBJECT_MODES | PIECES,)
#: Views without operators; of a single slice.
ALL_SLICES: Capability = (_ANY,)
ONE_SLICE: Capability = (_ANY - SEVERAL,)
#: Views with operators; of a single slice with those at the probe alone, to a far field, also with pieces of the
#: detector; of a single slice with those alone that keep products of waves behind it.
WITH_OPERATORS: Capability = (_ANY | OPERATORS,)
FAR_WITH_OPERATORS: Capability = (_ANY - SEVERAL - NEAR - UNKNOWN | AT_PROBE | PIECES,)
PRODUCTS_WITH_OPERATORS: Capability = (ONE_SLICE[0] | AT_PROBE | AT_EXIT,)
#: Views of a single slice whose probes have no OPR modes.
ONE_BEAM: Capability = (_ANY - SEVERAL - VARIED,)
#: Views that the kernels take from the probe to the sums, one after the other: through several slices, to a near field,
#: or with probes of their own.
SLICES: Capability = (_ANY - ONE - UNKNOWN | PIECES,)
NEAR_FIELD: Capability = (_ANY - SEVERAL - FAR - UNKNOWN | PIECES,)
OWN_PROBES: Capability = (_ANY - SEVERAL - NEAR - BILINEAR - SHARED - UNKNOWN | PIECES,)
FROM_PROBE: Capability = SLICES + NEAR_FIELD + OWN_PROBES
#: Of these, views with OPR modes, or views that carry waves on between object and detector.
CARRIED_ON: Capability = SLICES + NEAR_FIELD + (OWN_PROBES[0] - SHIFTED,)
#: Views of a single slice in the far field that share the probe.
SHARED_PROBE: Capability = (_ANY - SEVERAL - NEAR - BILINEAR - SHIFTED - VARIED - UNKNOWN,)
#: Views of a single slice that shift the probe.
SHIFTED_PROBES: Capability = (_ANY - SEVERAL - BILINEAR - WHOLE - SHARED - UNKNOWN,)
#: Views that may shift the probe, without OPR modes, of a single slice in the far field.
SHIFTED_BEAM: Capability = (_ANY - SEVERAL - NEAR - BILINEAR - WHOLE - VARIED,)
#: Views that shift the probe to a far field, through any number of slices.
SHIFTED_TO_FAR_FIELD: Capability = (_ANY - NEAR - BILINEAR - WHOLE - SHARED - UNKNOWN,)
#: Views that shift the probe, and their images back with it, of a single slice.
SHIFTED_IMAGES: Capability = (NEAR_FIELD[0] - BILINEAR - WHOLE,)


class Request(NamedTuple):
    """The demands of a model and a chunk of views on an operation.

    Attributes:
        several: True for several slices.
        near: True for a near field.
        subpixel: how fractions of positions act.
        varied: True for probes with OPR modes.
        on_pixels: True if all views lie on whole pixels.
        transform_known: True if the kernels know the windows' Fourier transform.
        operators: words for the model's operators.
        detector: words for the pieces between intensities and counts.
        fidelity: loss to which the step at the detector belongs.
        kind: class of the model.
    """

    several: bool
    near: bool
    subpixel: str
    varied: bool
    on_pixels: bool
    transform_known: bool
    operators: frozenset[str]
    detector: frozenset[str]
    fidelity: str
    kind: type[Model]

    @classmethod
    def of(cls, model: Model, varied: bool, on_pixels: bool, transform_known: bool) -> Request:
        """Return the request of a model and of views.

        Args:
            model: the forward model.
            varied: True for probes with OPR modes.
            on_pixels: True if all views lie on whole pixels.
            transform_known: True if the kernels know the windows' Fourier transform.
        """
        several, near = model.slice_kernel is not None, model.kernel is not None
        views = varied, on_pixels, transform_known
        # asked several times for each chunk, mostly of a model without either
        operators = words_for(model) if model.operators or model.energies or model.mirror else NONE
        on_light = model.detector and model.on_light
        pieces = NONE if not on_light else PIECES | SATURATED if model.saturation else PIECES
        return cls(several, near, model.subpixel, *views, operators, pieces, model.fidelity, type(model))

    def words(self, operation: Operation) -> frozenset[str]:
        """Return the words for an operation."""
        probes = VARIED if self.varied else SHIFTED if self.subpixel == "fourier" and not self.on_pixels else SHARED
        words = (SEVERAL if self.several else ONE) | (NEAR if self.near else FAR) | probes
        words |= (KNOWN if self.transform_known else UNKNOWN) | {f"{self.subpixel} positions"}
        words |= {f"{self.fidelity} fidelity"} if operation in COMPARING else frozenset()
        words |= self.operators
        words |= self.detector if operation in COMPARING else frozenset()
        return words if self.kind is Model else words | {"a model of one's own"}


def words_for(model: Model) -> frozenset[str]:
    """Return the words for the operators of a model."""
    words = OBJECT_MODES if model.object_modes > 1 else frozenset[str]()
    for one in (placed.operator for placed in model.operators):
        at_exit = AT_EXIT if one.keeps_products else AT_EXIT | CHANGING
        words |= {"probe": AT_PROBE, "between": BETWEEN, "exit": at_exit}[one.at]
    words = words if model.energies is None else words | {"several energies"}
    return words if model.mirror is None else words | {"mirror"}


def capability_for(operation: Operation, request: Request, capabilities: Iterable[Capability]) -> Capability | None:
    """Return the first capability that covers a request; None if none does.

    Args:
        operation: name of the operation.
        request: what is asked.
        capabilities: capabilities that there are for the operation.
    """
    words = request.words(operation)
    return next((one for one in capabilities if any(words <= some for some in one)), None)


def varies(chunk: Chunk) -> bool:
    """Return True if the beams of a chunk have OPR modes."""
    return chunk.weights.shape[1] > 1

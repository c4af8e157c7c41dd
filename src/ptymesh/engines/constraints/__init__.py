"""Gauges and constraints of probe and object between epochs, each on its own schedule, one a file.

L, H, W  slices, object pixels;  M, h, w  modes, window pixels

Gauges use the exact ambiguities of ptychography: scale between object and probe, translation, a linear ramp on the
object with the inverse ramp on the probe. They do not change intensities.
"""

from __future__ import annotations

from collections.abc import Mapping

from ptymesh.engines.constraints.base import CONSTRAINTS, Constraint, Prior, RisingStrength
from ptymesh.engines.constraints.gauges.centring import Centre, centre
from ptymesh.engines.constraints.gauges.ramp import Ramp, remove_ramp
from ptymesh.engines.constraints.gauges.scale import Power, Scale, rescale
from ptymesh.engines.constraints.illumination import LIT, illuminated_mask
from ptymesh.engines.constraints.limits import Amplitude, Limits, Phase, limit_amplitude, limit_phase
from ptymesh.engines.constraints.orthogonalise import Orthogonalise
from ptymesh.engines.constraints.smooth import Smooth, smoothed
from ptymesh.engines.constraints.support import FourierSupport, Support, disc
from ptymesh.registry import import_modules

__all__ = [
    "CONSTRAINTS",
    "KEYS",
    "LIT",
    "Amplitude",
    "Centre",
    "Constraint",
    "FourierSupport",
    "Limits",
    "Orthogonalise",
    "Phase",
    "Power",
    "Prior",
    "Ramp",
    "RisingStrength",
    "Scale",
    "Smooth",
    "Support",
    "centre",
    "disc",
    "illuminated_mask",
    "limit_amplitude",
    "limit_phase",
    "ordered",
    "remove_ramp",
    "rescale",
    "smoothed",
]

#: Keys of `probe` and `object` in the order in which they are applied; those of `constraints` say where they belong.
KEYS = (
    ("probe", "support"),
    ("probe", "fourier_support"),
    ("probe", "orthogonalise"),
    ("object", "smooth"),
    ("object", "amplitude"),
    ("object", "phase"),
    ("object", "ramp"),
    ("object", "scale"),
    ("probe", "centre"),
    ("probe", "power"),
)


def ordered(named: Mapping[str, Constraint]) -> list[str]:
    """Return all names, keys of `probe` and `object` too, in the order in which constraints are applied.

    Each comes right after the one that its class names (`after`); several that name the same one keep the order of the
    registry. One without `after`, or after a name that there is not, comes last, in the order given.

    Args:
        named: constraints by name, in the order of the recipe.
    """
    names = [key for _, key in KEYS]
    waiting = dict(CONSTRAINTS.items()) | {name: type(one) for name, one in named.items()}
    while followers := {name: kind.after for name, kind in waiting.items() if kind.after in names}:
        for before in dict.fromkeys(followers.values()):
            at = names.index(str(before)) + 1
            names[at:at] = [name for name, after in followers.items() if after == before]
        waiting = {name: kind for name, kind in waiting.items() if name not in followers}
    return names + [name for name in named if name in waiting]


# files register the constraints that they define; those that nothing else orders are applied in the files' order
list(import_modules(__name__, __path__))

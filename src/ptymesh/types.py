"""Axis legend and array aliases.

N, B        all views (scan positions), views in one batch
M           incoherent probe modes
L           object slices
H, W        object pixels
h, w        window pixels (= detector pixels after cropping, binning or padding)

y before x everywhere; SI units inside, a unit suffix on every name that carries one; positions in object pixels
unless a suffix says otherwise. Arrays hold float32/complex64 or float64/complex128 throughout one reconstruction; only
waves that are stored between sweeps may have half precision (physics/half_precision.py).
"""

from typing import Literal

import torch
from jaxtyping import Bool, Complex, Float, Int
from torch import Tensor

Object = Complex[Tensor, "L H W"]
Probe = Complex[Tensor, "M h w"]
Positions = Float[Tensor, "N 2"]
Anchors = Int[Tensor, "N 2"]
Weights = Float[Tensor, "N K"]
Waves = Complex[Tensor, "B M h w"]
Images = Float[Tensor, "B h w"]
Mask = Bool[Tensor, "h w"]
#: Precision of a reconstruction; mixed is single, with half precision for stored waves.
Precision = Literal["single", "mixed", "double"]

__all__ = [
    "Anchors",
    "Images",
    "Mask",
    "Object",
    "Positions",
    "Precision",
    "Probe",
    "Waves",
    "Weights",
    "complex_dtype",
]


def complex_dtype(precision: Precision) -> torch.dtype:
    """Return the complex dtype of computations in this precision."""
    return torch.complex128 if precision == "double" else torch.complex64

"""Types of the arrays that kernels take. Their shapes are in the docstrings.

Compilers of kernels read this module without torch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Of any dtype.
Array = NDArray[Any]
#: float32 or float64.
RealArray = NDArray[np.floating]
#: complex64 or complex128.
ComplexArray = NDArray[np.complexfloating]
IntArray = NDArray[np.integer]
BoolArray = NDArray[np.bool_]
#: Real or complex.
NumberArray = NDArray[np.inexact]
#: Patterns in the detector's dtype: integers or floats.
CountArray = NDArray[np.number]

#: Constants, plan and twiddles of a transform (arguments.Transform).
Tables = tuple[RealArray, IntArray, RealArray]
#: What exit waves are made of: object, corners of windows, beams, amplitudes (cpu/compiled/windows.py).
ExitInputs = tuple[ComplexArray, IntArray, ComplexArray, RealArray]
#: Shifts, amplitudes and factors of pixels of copies of a probe (cpu/compiled/probes.py).
CopyInputs = tuple[RealArray, RealArray, RealArray]
#: Changes of exit waves, object, corners of windows (cpu/compiled/probes.py).
BackInputs = tuple[ComplexArray, ComplexArray, IntArray]
#: Spectrum or probe, fractions, shares (cpu/compiled/shifts.py).
ShiftInputs = tuple[ComplexArray, RealArray, RealArray]
#: Number of slices, kernels between them and to the near field, whether probes are shifted (cpu/compiled/detector.py).
PathInputs = tuple[int, RealArray, RealArray, bool]
#: Counts as bytes, indices of patterns, mask and background in panels (cpu/compiled/detector.py).
DetectorInputs = tuple[IntArray, IntArray, RealArray, RealArray]
#: Dtype of counts, product, fidelity and task as numbers (cpu/compiled/detector.py).
DetectorOptions = tuple[int, bool, int, int]
#: Sums of a background, rounding shifts, limits (cpu/compiled/background.py).
BackgroundArrays = tuple[RealArray, RealArray, RealArray]
#: What views hold while pieces of the detector are computed, and their powers or factors (cpu/compiled/detector.py).
HeldArrays = tuple[RealArray, RealArray]
#: Windows, light, sums, lights, OPR sums, OPR lights, shifts, reached, probes, asked (cpu/compiled/detector.py).
SumArrays = tuple[
    ComplexArray, RealArray, RealArray, RealArray, RealArray, RealArray, RealArray, RealArray, RealArray, RealArray
]

"""A Gaussian blur of the detector: light that spreads to neighbouring pixels, in a scintillator or a sensor.

s          its standard deviation along each axis, in detector pixels
k          frequency in cycles per pixel

    T(k) = exp(s^2 c),  c = cos 2 pi k_y + cos 2 pi k_x - 2;    R S = F^H T F S,    dR S / ds = F^H 2 s c T F S

The discrete Gaussian (Lindeberg, IEEE Trans. Pattern Anal. Mach. Intell. 12, 234, 1990): its kernel is positive, holds
all light, and has the variance s^2 exactly, however narrow it is; from a pixel on it is a sampled Gaussian. Light that
leaves the window comes in on the other side, where in a far field the same angle lies. A narrow one is a convolution
along y and one along x on a CPU; others are transforms in double precision, as the brightest pixel is some 10^7 times
as bright as the dim ones beside it.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from ptymesh.geometry import Geometry
from ptymesh.physics.detector.pieces import DetectorPiece
from ptymesh.physics.operators import Tables, Values
from ptymesh.physics.propagate import frequencies
from ptymesh.physics.separable import convolve_windows, filter_windows
from ptymesh.unknowns import Unknown

#: Share of a pixel's light below which a kernel ends, by precision: in the single one, of 10^8 counts a hundredth.
FAINTEST = {torch.float32: 1e-10, torch.float64: 1e-15}
#: Numbers of a kernel, from its middle on, up to which it is faster than a transform.
LONGEST = 24


class DetectorBlur(DetectorPiece):
    """Blur of the detector by a Gaussian of standard deviation `blur_width`, in detector pixels.

    It stays at `start: {blur_width: 0.7}`, or is refined if a stage has `unknowns: {blur_width: true}`.
    """

    name: ClassVar[str] = "detector_blur"
    is_fast: ClassVar[bool] = True
    unknowns: ClassVar[tuple[Unknown, ...]] = (Unknown("blur_width", unit="px", start=0.5, least=0.05, largest=1000.0),)

    def sizes(self, geometry: Geometry) -> dict[str, float]:
        """Return a width, px, that is seen: the light of a pixel is shared by its neighbours."""
        return {"blur_width": 0.5}

    def forward(self, S: Tensor, values: Values, tables: Tables) -> Tensor:
        """Return the blurred S.

        Args:
            S: (B, ..., h, w) real.
            values: `blur_width`, 0-d.
            tables: none.
        """
        width = values["blur_width"]
        if S.device.type == "cpu" and not width.requires_grad:
            kernels = [_taps(float(width), size, FAINTEST[S.dtype]) for size in S.shape[-2:]]
            ends = all(2 * len(taps) < size for taps, size in zip(kernels, S.shape[-2:], strict=True))
            if ends and max(map(len, kernels)) <= LONGEST:
                return convolve_windows(S, *kernels)
        return filter_windows(S, self._transfer(S, values)[0])

    def adjoint(self, x: Tensor, values: Values, tables: Tables) -> Tensor:
        """Return the blurred x: the kernel is symmetric.

        Args:
            x: (B, ..., h, w) real.
            values: `blur_width`, 0-d.
            tables: none.
        """
        return self.forward(x, values, tables)

    def derivatives(self, S: Tensor, values: Values, tables: Tables) -> dict[str, Tensor]:
        """Return dR S / ds, (B, h, w).

        Args:
            S: (B, h, w) real.
            values: `blur_width`, 0-d.
            tables: none.
        """
        transfer, cosines = self._transfer(S, values)
        return {"blur_width": filter_windows(S, 2 * values["blur_width"].to(torch.float64) * cosines * transfer)}

    def reach_px(self, values: Values) -> float:
        """Return the standard deviation."""
        return float(values["blur_width"])

    @staticmethod
    def _transfer(S: Tensor, values: Values) -> tuple[Tensor, Tensor]:
        """Return T and c, (h, w) float64."""
        cosines = _cosines((S.shape[-2], S.shape[-1]), S.device)
        return torch.exp(values["blur_width"].to(torch.float64) ** 2 * cosines), cosines


@lru_cache(maxsize=8)
def _cosines(window: tuple[int, int], device: torch.device) -> Tensor:
    """Return c, (h, w) float64: tables would be in the model's precision."""
    y, x = (torch.cos(2 * math.pi * k) - 1 for k in frequencies(window, (1.0, 1.0), device))
    return y + x


@lru_cache(maxsize=8)
def _taps(width: float, size: int, faintest: float) -> Tensor:
    """Return the kernel along an axis of `size` pixels, from its middle on, as far as `faintest`, (n,) float64."""
    cosines = torch.cos(2 * math.pi * torch.fft.rfftfreq(size, dtype=torch.float64)) - 1
    taps = torch.fft.irfft(torch.exp(width**2 * cosines).to(torch.complex128), size)[: (size + 1) // 2]
    return taps[: int((taps > faintest).nonzero().max()) + 1]

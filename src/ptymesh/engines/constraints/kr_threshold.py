"""Few strong spatial frequencies of each slice: noise that is spread over all of them goes, a lattice stays.

    X = C^-1 [ C O where |C O| is among the strongest, else 0 ],  C the cosine transform of a slice

The transform is real, so that amplitudes of its complex coefficients count; cosines are even at the edges, and nothing
wraps. It is of the whole slice, which each rank gathers, one slice after the other.

Source: PtyRAD's `kr_thresh`, which keeps the strongest of all slices together, of amplitude and phase each.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import scipy.fft
import torch
from pydantic import Field
from torch import Tensor

from ptymesh.engines.constraints.base import CONSTRAINTS, OfValues, Prior
from ptymesh.estimate import Estimate
from ptymesh.problem import Problem


@CONSTRAINTS.register("kr_threshold")
class KrThreshold(Prior):
    """The weakest frequencies in the plane are removed, of each slice by itself.

    Attributes:
        keep: share of a slice's frequencies, the strongest, that stays.
    """

    after: ClassVar[str | None] = "smooth"
    of_potential: ClassVar[OfValues] = "values"
    #: The slice, its coefficients, their strengths (halves, one of them sorted), and what is made of those that stay.
    whole_planes: ClassVar[int] = 4

    keep: float = Field(0.1, gt=0, lt=1)

    def goal(self, problem: Problem, estimate: Estimate) -> Tensor:
        """Return the object of few frequencies. Collective.

        Args:
            problem: its layout gathers slices.
            estimate: the unknowns.
        """
        obj, goal = estimate.object, torch.empty_like(estimate.object)
        top, left = estimate.corner
        height, width = obj.shape[-2:]
        for plane, changed in zip(obj.split(1), goal, strict=True):
            full_plane = problem.layout.gather_whole(plane.contiguous(), estimate)[0]
            strong = torch.from_numpy(strongest_frequencies(full_plane.cpu().numpy(), self.keep))
            changed.copy_(strong[top : top + height, left : left + width])
        return goal


def strongest_frequencies(plane: np.ndarray, keep: float) -> np.ndarray:
    """Return a plane made of a share of its cosine coefficients, the strongest.

    Args:
        plane: (H, W) complex.
        keep: the share; at least one coefficient is kept, and all that are as strong as the weakest of them.

    Returns:
        (H, W) complex, of the same precision.
    """
    coefficients = scipy.fft.dctn(plane, norm="ortho")
    strength = np.abs(coefficients)
    count = max(1, int(keep * strength.size))
    weakest = np.partition(strength, strength.size - count, axis=None)[strength.size - count]
    coefficients[strength < weakest] = 0
    return np.asarray(scipy.fft.idctn(coefficients, norm="ortho"))

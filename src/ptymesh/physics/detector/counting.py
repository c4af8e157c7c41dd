"""Expected misfit of Poisson counts, pixel by pixel.

y       counts, Poisson of mean I

    f(I) = E (sqrt y - sqrt I)^2        misfit of the true intensity: 1/4 for bright pixels, 2 I for dark ones
    v(I) = Var sqrt y                   least misfit of any intensity, at (E sqrt y)^2: 1/4 and I
    w(I) = Var (sqrt y - sqrt I)^2      1/8 for bright pixels

Where only counts are known, g(y) has the mean f(I) over the counts of a pixel, to 10 % for any I and to 2 % over most
patterns (no unbiased one exists, as f has a root in it), and h(y) the mean v(I) to 0.1 %.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

#: g of 0 to 6 counts, by least squares of sum_y p(y; I) g(y) / f(I) - 1 over I from 0.001 to 60.
FEW_MISFIT = (0.0, 1.757, -2.450, 4.475, -2.753, 0.712, 0.648)
#: h of 0 to 6 counts, by least squares of sum_y p(y; I) h(y) / v(I) - 1 over the same I.
FEW_SPREAD = (0.0, 1.0, 0.003, 0.493, 0.157, 0.306, 0.269)
#: Intensity above which f, v and w are taken from their series; number of counts over which they are summed below it;
#: and number of points on the axis of sqrt I between which they are interpolated.
BRIGHT, MOST, POINTS = 60.0, 160, 400


def expected_misfit(y: Tensor) -> Tensor:
    """Return g of whole counts (...), in the dtype of y: its sum over sum y estimates the residual of the truth."""
    return _look_up_counts(y, FEW_MISFIT, 7 / 64)


def expected_spread(y: Tensor) -> Tensor:
    """Return h of whole counts (...), in the dtype of y: its sum estimates the sum of v over the pixels."""
    return _look_up_counts(y, FEW_SPREAD, 3 / 32)


def _look_up_counts(y: Tensor, few: tuple[float, ...], slope: float) -> Tensor:
    """Look small counts up in a table, and use 1/4 + slope / y for all others."""
    table = torch.tensor(few, dtype=y.dtype, device=y.device)
    dim = table[y.clamp(0, len(few) - 1).to(torch.int64)]
    return torch.where(y < len(few), dim, 0.25 + slope / y.clamp(min=1))


def misfit_of(I: Tensor) -> tuple[Tensor, Tensor]:
    """Return f(I) and w(I) of intensities (...) in counts, float64, interpolated from tables."""
    I = I.to(torch.float64)
    place = I.clamp(0, BRIGHT).sqrt() * ((POINTS - 1) / BRIGHT**0.5)
    lower = place.floor().clamp(max=POINTS - 2)
    part, rows = place - lower, lower.to(torch.int64)
    f, w = (row.to(I.device) for row in _tables())
    inverse = 1 / I.clamp(min=1)
    values = []
    for table, limit, slope in ((f, 0.25, 7 / 64), (w, 0.125, W_SLOPE)):
        dim = table[rows] + part * (table[rows + 1] - table[rows])
        values.append(torch.where(I < BRIGHT, dim, limit + slope * inverse))
    return values[0], values[1]


#: w(I) = 1/8 + W_SLOPE / I for bright pixels.
W_SLOPE = 13 / 64


@cache
def _tables() -> tuple[Tensor, Tensor]:
    """Return f and w at POINTS values of sqrt I from 0 to sqrt BRIGHT."""
    I = torch.linspace(0, BRIGHT**0.5, POINTS, dtype=torch.float64)[:, None] ** 2
    k = torch.arange(MOST, dtype=torch.float64)
    p = torch.exp(torch.xlogy(k, I) - I - torch.lgamma(k + 1))
    square = (k.sqrt() - I.sqrt()) ** 2
    f = (p * square).sum(1)
    return f, (p * square**2).sum(1) - f**2
